//! A connection that this node dialled, for one lane to one node: what waits to be sent, and how it is.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use group::ids::{Lane, NodeId};
use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use node::event::LinkReport;
use socket2::SockRef;

use super::compression::{Compressor, PIECE_BYTES};
use super::frame::{self, FRAME_HEADER_BYTES, MESSAGE_HEADER_BYTES, Malformed, Welcome, welcome_bytes};
use super::wire::Wire;
use crate::limits::{
    LINK_BUSY_MAX, LINK_DIRECT_BYTES_MAX, LINK_FRAME_BYTES, LINK_PAUSE_MAX, LINK_PAUSE_MIN, LINK_STUCK_MAX,
    lane_bytes_max,
};
use crate::tls::LinkSecurity;

/// See the module.
pub struct Link {
    /// The node at the other end.
    pub node: NodeId,
    /// For what.
    pub lane: Lane,
    /// On the log's lane: of which core's groups.
    pub core: u32,
    /// How it is.
    pub state: State,
    /// The socket has not refused anything since it was last said to take more.
    pub is_writable: bool,
    /// A message has been dropped, and nobody told yet.
    pub has_dropped: bool,
    /// The socket broke under somebody who wrote; the link must be cut.
    pub failure: Option<String>,
    address: String,
    /// Where else the node may be: tried in turn with its address.
    others: Vec<String>,
    /// Which one is tried now: 0 is the address, and then come the others.
    turn: usize,
    /// Where it leads has been changed, and nothing has been tried there.
    is_moved: bool,
    /// Why it was cut, or could not be made, last, for each of them.
    causes: BTreeMap<String, String>,
    pause: Duration,
    /// Frames to be sent. Of the first one `sent` bytes have been.
    out: VecDeque<Vec<u8>>,
    out_bytes: usize,
    sent: usize,
    /// What frames go through on their way to the socket; what has gone in counts as sent.
    compressor: Option<Compressor>,
    /// When the socket last took something, or there was nothing to take.
    moved: Instant,
    /// The version of the protocol that it was greeted in last.
    version: u16,
    /// The other end does not know what is in the logs here by now: it is given nothing more on this connection.
    is_muted: bool,
    welcome: Vec<u8>,
    report: LinkReport,
}

/// Why a greeting has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ungreeted {
    /// The other end answers in another version.
    Version(u16),
    /// What it answers is none.
    Malformed(Malformed),
    /// The connection broke.
    Cut(String),
}

/// Of a [`Link`].
pub enum State {
    /// There is no connection; when to dial.
    Down {
        /// Not before.
        until: Instant,
    },
    /// Somebody may answer.
    Greeting {
        /// The connection on which it was said.
        wire: Wire,
        /// When.
        since: Instant,
    },
    /// It carries messages.
    Up {
        /// There.
        wire: Wire,
    },
}

impl Link {
    /// One to be dialled at once.
    pub fn new(node: NodeId, address: String, lane: Lane, core: u32) -> Self {
        let now = Instant::now();
        Self {
            node,
            lane,
            core,
            state: State::Down { until: now },
            is_writable: false,
            has_dropped: false,
            failure: None,
            report: LinkReport { node, lane, address: address.clone(), ..LinkReport::default() },
            address,
            others: Vec::new(),
            turn: 0,
            is_moved: false,
            causes: BTreeMap::new(),
            pause: LINK_PAUSE_MIN,
            out: VecDeque::new(),
            out_bytes: 0,
            sent: 0,
            compressor: None,
            moved: now,
            version: 0,
            is_muted: false,
            welcome: Vec::new(),
        }
    }

    /// How it is, in figures.
    pub fn report(&self) -> LinkReport {
        LinkReport { waiting_bytes: self.waiting_bytes() as u64, ..self.report.clone() }
    }

    /// Why it was cut, or could not be made, last.
    pub fn last_cause(&self) -> &str {
        &self.report.last_cause
    }

    /// From now on the node is there. True if this leads elsewhere: the connection is not what is wanted any more.
    pub fn readdress(&mut self, address: &str) -> bool {
        if self.address == address {
            return false;
        }
        let is_there = self.address() == address && !matches!(self.state, State::Down { .. });
        address.clone_into(&mut self.address);
        address.clone_into(&mut self.report.address);
        self.others.retain(|other| other != address);
        self.turn = 0;
        self.is_moved = !is_there;
        self.forget_causes();
        !is_there
    }

    /// The node may be at one of these, too. What is new is tried next.
    pub fn also_try(&mut self, others: &[String]) {
        let current = self.address().to_owned();
        let others: Vec<String> = others.iter().filter(|other| **other != self.address).cloned().collect();
        let news = others.iter().position(|other| !self.others.contains(other));
        self.others = others;
        self.turn = self.others.iter().position(|other| *other == current).map_or(0, |place| place + 1);
        if let (Some(place), State::Down { until }) = (news, &mut self.state) {
            (self.turn, *until) = (place + 1, Instant::now());
        }
        self.forget_causes();
    }

    fn forget_causes(&mut self) {
        let (address, others) = (&self.address, &self.others);
        self.causes.retain(|place, _| place == address || others.contains(place));
    }

    /// Where the node is looked for now.
    pub fn address(&self) -> &str {
        self.turn.checked_sub(1).and_then(|place| self.others.get(place)).unwrap_or(&self.address)
    }

    /// From the next connection on compresses what it carries so hard, or not at all.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub fn compress(&mut self, level: Option<i32>) -> io::Result<()> {
        self.compressor = level.map(Compressor::new).transpose()?;
        Ok(())
    }

    /// True if it compresses what it carries.
    pub fn is_compressed(&self) -> bool {
        self.compressor.is_some()
    }

    /// Begins to connect, to what its address means now.
    ///
    /// # Errors
    /// Those of the sockets.
    pub fn dial(
        &mut self,
        address: SocketAddr,
        registry: &Registry,
        token: Token,
        security: Option<&LinkSecurity>,
        version: u16,
    ) -> io::Result<()> {
        self.version = version;
        self.is_muted = false;
        let mut stream = TcpStream::connect(address)?;
        let _ = stream.set_nodelay(true);
        // What nobody acknowledges is not waited for much longer than an election.
        let _ = SockRef::from(&stream).set_tcp_user_timeout(Some(patience(self.lane)));
        registry.register(&mut stream, token, Interest::READABLE | Interest::WRITABLE)?;
        self.sent = 0;
        let wire = match security {
            None => Wire::Plain(stream),
            Some(security) => Wire::Tls(Box::new(security.dial(self.node.0, stream))),
        };
        self.state = State::Greeting { wire, since: Instant::now() };
        Ok(())
    }

    /// Greets and reads the answer, as far as the socket lets it.
    ///
    /// # Errors
    /// Why there will be no answer.
    pub fn greet(&mut self, hello: &[u8], buffer: &mut [u8]) -> Result<Option<Welcome>, Ungreeted> {
        let State::Greeting { wire, .. } = &mut self.state else { return Ok(None) };
        if let Ok(Some(error)) | Err(error) = wire.socket().take_error() {
            return Err(Ungreeted::Cut(error.to_string()));
        }
        while self.sent < hello.len() {
            match wire.write(&hello[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected) => {
                    return Ok(None);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Ungreeted::Cut(error.to_string())),
            }
        }
        while self.welcome.len() < welcome_bytes(self.version) {
            let wanted = welcome_bytes(self.version) - self.welcome.len();
            match wire.read(&mut buffer[..wanted]) {
                Ok(0) => return Err(Ungreeted::Cut("the other end closed it".to_owned())),
                Ok(count) => {
                    self.welcome.extend_from_slice(&buffer[..count]);
                    let seen = frame::version_in(&self.welcome).map_err(Ungreeted::Malformed)?;
                    if let Some(version) = seen.filter(|version| *version != self.version) {
                        return Err(Ungreeted::Version(version));
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Ungreeted::Cut(error.to_string())),
            }
        }
        Welcome::decode(&self.welcome, self.version).map(Some).map_err(Ungreeted::Malformed)
    }

    /// The version of the protocol that it was greeted in last.
    pub fn version(&self) -> u16 {
        self.version
    }

    /// The address of this node at this end of the line.
    pub fn own_address(&self) -> io::Result<SocketAddr> {
        match &self.state {
            State::Up { wire } | State::Greeting { wire, .. } => wire.socket().local_addr(),
            State::Down { .. } => Err(ErrorKind::NotConnected.into()),
        }
    }

    /// It has been let in; `started` is when the process was.
    pub fn up(&mut self, started: Instant) {
        let State::Greeting { wire, .. } = std::mem::replace(&mut self.state, State::Down { until: started }) else {
            return;
        };
        self.report.is_encrypted = wire.is_encrypted();
        self.report.is_compressed = self.compressor.is_some();
        self.state = State::Up { wire };
        self.pause = LINK_PAUSE_MIN;
        self.sent = 0;
        self.is_writable = true;
        self.moved = Instant::now();
        self.report.is_up = true;
        self.report.count += 1;
        self.report.since_s = started.elapsed().as_secs();
    }

    /// Ends a connection that has not been up, to begin at once with another one. Nothing is wrong with it.
    pub fn begin_again(&mut self) {
        self.drop_connection(Duration::ZERO);
    }

    /// Ends the connection; what waited is dropped. Says whether it was up, and whether the cause is a new one.
    pub fn cut(&mut self, cause: &str, pause_min: Duration) -> (bool, bool) {
        let was_up = matches!(self.state, State::Up { .. });
        let known = self.causes.insert(self.address().to_owned(), cause.to_owned());
        if !std::mem::take(&mut self.is_moved) && !was_up {
            self.turn = (self.turn + 1) % (self.others.len() + 1);
        }
        self.drop_connection(pause_min);
        cause.clone_into(&mut self.report.last_cause);
        (was_up, was_up || known.as_deref() != Some(cause))
    }

    fn drop_connection(&mut self, pause_min: Duration) {
        self.pause = (self.pause * 2).clamp(LINK_PAUSE_MIN, LINK_PAUSE_MAX).max(pause_min);
        self.state = State::Down { until: Instant::now() + if pause_min.is_zero() { pause_min } else { self.pause } };
        self.failure = None;
        self.out.clear();
        (self.out_bytes, self.sent) = (0, 0);
        self.compressor = None;
        self.welcome.clear();
        self.report.is_up = false;
    }

    /// Hears what the other end says, which should be nothing.
    ///
    /// # Errors
    /// Why the connection is at its end, and how long it should rest.
    pub fn listen(&mut self, buffer: &mut [u8]) -> Result<(), (String, Duration)> {
        let State::Up { wire } = &mut self.state else { return Ok(()) };
        match wire.read(buffer) {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(()),
            Ok(0) => Err(("the other end closed it".to_owned(), LINK_PAUSE_MIN)),
            Ok(_) => Err(("the other end spoke out of turn".to_owned(), LINK_PAUSE_MAX)),
            Err(error) => Err((error.to_string(), LINK_PAUSE_MIN)),
        }
    }

    /// True if a core may put a message of so many bytes in itself: it is small, as is all that waits.
    pub fn takes_directly(&self, length: usize) -> bool {
        self.lane != Lane::Bulk && self.out_bytes + length <= LINK_DIRECT_BYTES_MAX
    }

    /// True if the link is up and would take a message of so many bytes. One that is larger than all room is taken as
    /// long as there is any left: on a lane that is always in use it would otherwise never get its turn.
    pub fn has_room(&self, length: usize) -> bool {
        let bytes_max = lane_bytes_max(self.lane);
        let length = length + MESSAGE_HEADER_BYTES;
        self.takes_any() && (self.out_bytes + length <= bytes_max || length > bytes_max && self.out_bytes < bytes_max)
    }

    /// Takes a message, if it has room for it.
    pub fn push(&mut self, group: u32, bytes: &[u8]) -> bool {
        let has_room = self.has_room(bytes.len());
        self.count(has_room);
        if !has_room {
            return false;
        }
        let length = bytes.len() + MESSAGE_HEADER_BYTES;
        let is_gathering =
            self.out.back().is_some_and(|frame| is_open(frame) && frame.len() + length <= LINK_FRAME_BYTES);
        if !is_gathering {
            self.close_frame();
            let mut fresh = Vec::with_capacity(FRAME_HEADER_BYTES + length.max(4 << 10));
            frame::begin_frame(&mut fresh);
            self.out_bytes += FRAME_HEADER_BYTES;
            self.out.push_back(fresh);
        }
        frame::push_message(self.out.back_mut().expect("just made"), group, bytes);
        self.out_bytes += length;
        true
    }

    /// Takes a frame of one message, made for it since there was room; none if there was not.
    pub fn push_whole(&mut self, whole: Option<Vec<u8>>) -> bool {
        let whole = whole.filter(|_| self.takes_any());
        self.count(whole.is_some());
        let Some(whole) = whole else { return false };
        self.close_frame();
        self.out_bytes += whole.len();
        self.out.push_back(whole);
        true
    }

    /// Counts a message that is about to be taken, or is not.
    fn count(&mut self, is_taken: bool) {
        if is_taken {
            if self.waiting_bytes() == 0 {
                self.moved = Instant::now();
            }
            self.report.message_count += 1;
        } else {
            self.has_dropped |= self.is_up();
            self.report.dropped_count += 1;
        }
    }

    /// Takes no more messages if the connection speaks an older version of the protocol than this.
    pub fn mute_below(&mut self, version: u16) {
        self.is_muted |= self.version < version;
    }

    /// True if it takes messages, as far as it has room.
    fn takes_any(&self) -> bool {
        self.is_up() && !self.is_muted
    }

    /// True if it carries messages.
    pub fn is_up(&self) -> bool {
        matches!(self.state, State::Up { .. }) && self.failure.is_none()
    }

    /// Ends the frame being gathered.
    fn close_frame(&mut self) {
        if let Some(open) = self.out.back_mut().filter(|frame| is_open(frame)) {
            frame::end_frame(open, 0);
        }
    }

    /// Writes what the socket takes now, but compresses no more than `pack_bytes` on the way, and takes what it has
    /// compressed off that. If it breaks, that is in `failure`.
    pub fn write(&mut self, pack_bytes: &mut usize) {
        self.close_frame();
        while self.is_writable && self.failure.is_none() {
            let State::Up { wire } = &mut self.state else { return };
            let front = self.out.front().map(|front| &front[self.sent..]);
            let (written, gone) = match (&mut self.compressor, front) {
                (Some(compressor), _) if !compressor.ready().is_empty() => {
                    let written = wire.write(compressor.ready());
                    if let Ok(count) = written {
                        compressor.sent(count);
                    }
                    (written, 0)
                }
                (_, None) => return,
                (Some(_), Some(_)) if *pack_bytes == 0 => return,
                (Some(compressor), Some(front)) => {
                    let piece = &front[..front.len().min(PIECE_BYTES).min(*pack_bytes)];
                    *pack_bytes -= piece.len();
                    let is_last = piece.len() == front.len() && self.out.len() == 1;
                    (compressor.pack(piece, is_last).map(|()| 0), piece.len())
                }
                (None, Some(front)) => {
                    let written = wire.write(front);
                    let gone = *written.as_ref().unwrap_or(&0);
                    (written, gone)
                }
            };
            match written {
                Ok(count) => {
                    self.report.sent_bytes += count as u64;
                    self.moved = Instant::now();
                    self.advance(gone);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.is_writable = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => self.failure = Some(error.to_string()),
            }
        }
    }

    /// So many bytes of the frames have gone to the socket, or to what makes them smaller.
    fn advance(&mut self, count: usize) {
        self.sent += count;
        self.out_bytes -= count;
        self.report.carried_bytes += count as u64;
        if self.out.front().is_some_and(|front| front.len() == self.sent) {
            self.out.pop_front();
            self.sent = 0;
        }
    }

    fn waiting_bytes(&self) -> usize {
        self.out_bytes + self.compressor.as_ref().map_or(0, |compressor| compressor.ready().len())
    }

    /// True if there is more to be written, and the socket takes it.
    pub fn owes(&self) -> bool {
        self.is_writable && self.is_up() && self.waiting_bytes() > 0
    }

    /// True if something has been waiting for long and the socket takes nothing of it.
    pub fn is_stuck(&self) -> bool {
        self.waiting_bytes() > 0 && self.moved.elapsed() > patience(self.lane)
    }
}

/// How long a link may take nothing.
fn patience(lane: Lane) -> Duration {
    match lane {
        Lane::Vital | Lane::Bulk => LINK_STUCK_MAX,
        Lane::Log => LINK_BUSY_MAX,
    }
}

/// A frame that is still being gathered has no length yet.
fn is_open(frame: &[u8]) -> bool {
    frame[..4] == [0; 4]
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A link that is up, and its other end.
    pub fn pair(node: NodeId, lane: Lane) -> (Link, std::net::TcpStream) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("it has one");
        let stream = std::net::TcpStream::connect(address).expect("somebody listens");
        stream.set_nonblocking(true).expect("a socket");
        let (other, _) = listener.accept().expect("it has just connected");
        let mut link = Link::new(node, address.to_string(), lane, 0);
        link.state = State::Up { wire: Wire::Plain(TcpStream::from_std(stream)) };
        link.is_writable = true;
        (link, other)
    }

    #[test]
    fn a_busy_core_gets_its_link_cut_later_than_a_node_that_takes_nothing() {
        for (lane, seconds, is_stuck) in
            [(Lane::Vital, 5, true), (Lane::Bulk, 5, true), (Lane::Log, 5, false), (Lane::Log, 31, true)]
        {
            let (mut link, _other) = pair(NodeId(2), lane);
            link.is_writable = false;
            assert!(link.push(0, b"something waits"));
            let Some(moved) = Instant::now().checked_sub(Duration::from_secs(seconds)) else { continue };
            link.moved = moved;
            assert_eq!(link.is_stuck(), is_stuck, "{lane:?}, {seconds} s");
        }
    }

    #[test]
    fn where_a_node_may_be_is_tried_in_turn_with_where_it_is_said_to_be() {
        let mut link = Link::new(NodeId(2), "old:1".to_owned(), Lane::Log, 0);
        link.also_try(&[]);
        assert_eq!(link.cut("refused", Duration::ZERO), (false, true));
        assert_eq!(link.address(), "old:1");
        let places = ["old:1", "new:1", "false:1"].map(str::to_owned);
        link.also_try(&places);
        for (address, is_news) in [("new:1", true), ("false:1", true), ("old:1", false), ("new:1", false)] {
            assert_eq!(link.address(), address);
            assert_eq!(link.cut("refused", Duration::ZERO), (false, is_news), "{address}");
        }
        // Another version of the protocol is tried at the same place, and the same word changes nothing.
        link.begin_again();
        link.also_try(&places);
        assert_eq!(link.address(), "false:1");
        // The roster has learnt it.
        assert!(link.readdress("new:1"));
        link.cut("its address has changed", Duration::ZERO);
        assert_eq!(link.address(), "new:1");
        link.also_try(&[]);
        link.cut("refused", Duration::ZERO);
        assert_eq!(link.address(), "new:1");
    }

    #[test]
    fn a_link_to_where_a_node_turns_out_to_be_stays() {
        let (mut link, _other) = pair(NodeId(2), Lane::Log);
        link.also_try(&["new:1".to_owned()]);
        assert_ne!(link.address(), "new:1", "it is up");
        link.cut("broken", Duration::ZERO);
        assert_ne!(link.address(), "new:1", "it was up there");
        link.cut("refused", Duration::ZERO);
        assert_eq!(link.address(), "new:1");
        let (other, _end) = pair(NodeId(2), Lane::Log);
        link.state = other.state;
        assert!(!link.readdress("new:1"));
        assert!(link.is_up());
    }

    #[test]
    fn a_message_larger_than_the_lane_is_taken_while_there_is_room() {
        let (mut link, _other) = pair(NodeId(2), Lane::Vital);
        link.is_writable = false;
        let bytes_max = lane_bytes_max(Lane::Vital);
        let large = vec![7; bytes_max + 1];
        assert!(link.push(0, b"something waits"));
        assert!(link.push(0, &large), "it would never find the lane empty");
        assert!(!link.push(0, &large), "what waits is bounded");
        assert!(!link.push(0, b"small"), "there is no room at all");
        assert_eq!((link.report().message_count, link.report().dropped_count), (2, 2));
        assert!(link.has_dropped);
    }

    #[test]
    fn no_more_is_compressed_at_a_time_than_was_said() {
        let (mut link, other) = pair(NodeId(2), Lane::Log);
        link.compress(Some(1)).expect("memory");
        let message = vec![b'a'; 100 << 10];
        (0..5).for_each(|_| assert!(link.push(0, &message)));
        let waiting = link.waiting_bytes();
        let mut writes = 0;
        while link.owes() {
            link.write(&mut (64 << 10));
            writes += 1;
        }
        assert_eq!((writes, link.report().carried_bytes as usize), (waiting.div_ceil(64 << 10), waiting));
        drop(other);
    }

    #[test]
    fn what_breaks_under_a_writer_takes_no_more() {
        let (mut link, other) = pair(NodeId(2), Lane::Log);
        drop(other);
        // The first write may still succeed: only its answer says that nobody is there.
        for _ in 0..100 {
            link.push(0, b"hello");
            let mut pack_bytes = usize::MAX;
            link.write(&mut pack_bytes);
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(link.failure.is_some());
        assert!(!link.has_room(1));
        let (was_up, is_news) = link.cut("gone", LINK_PAUSE_MIN);
        assert!(was_up && is_news);
        assert_eq!(link.report().waiting_bytes, 0);
    }
}
