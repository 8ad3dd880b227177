//! Sends another cluster what changes here: a thread for each that follows.

use std::io::{self, ErrorKind, Write as _};
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use mio::{Events, Poll, Token};
use node::event::{Follower, SiteFollower, Wish};
use site::wire::WINDOW_LOG;
use site::{Frame, State, Teller};
use stdx::{Level, UnixMillis};

use super::copies::SiteCopy;
use super::lock;
use super::reading::{Lacking, Reading};
use crate::clock;
use crate::connection::Stream;
use crate::host::Host;
use crate::lead::copy::Begun;
use crate::limits::{COPY_RETRY, SITE_BATCH_INTERVAL, SITE_SILENCE_MAX, SITE_STATE_INTERVAL, SITE_STEPS_AHEAD};

/// A piece of a copy.
const PIECE_BYTES: usize = 256 << 10;

/// Why a link ends.
enum End {
    /// The line, or this process.
    Cut(String),
    /// What the other side lacks is not here.
    Gone(String),
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        Self::Cut(error.to_string())
    }
}

impl From<Lacking> for End {
    fn from(lacking: Lacking) -> Self {
        match lacking {
            Lacking::Fault(error) => error.into(),
            Lacking::Gone(why) => Self::Gone(why.to_owned()),
        }
    }
}

/// Sends until the line is cut.
pub fn serve(host: &Arc<Host>, number: u64, stream: Stream, follower: Follower) {
    let address = follower.address.clone();
    let level = i32::try_from(host.site.level.load(std::sync::atomic::Ordering::Relaxed)).unwrap_or(3);
    let mut line = match Line::new(stream, level) {
        Ok(line) => line,
        Err(error) => return host.log.warning(&format!("the second site {address} cannot be told anything: {error}")),
    };
    host.site.note_follower(|followers| {
        followers
            .insert(number, SiteFollower { address: address.clone(), state: "connecting", ..SiteFollower::default() });
    });
    let (place, copy) = match follower.wish {
        Some(Wish::Site { place, copy }) => (place, copy),
        _ => (None, None),
    };
    let end =
        Link { host, number, line: &mut line, moment: UnixMillis(0), lacking: None, copied: None }.run(place, copy);
    let why = match end {
        End::Cut(why) => why,
        End::Gone(why) => {
            // If it does not hear this it asks again.
            let _ = line.send(&Frame::Refused { needs_copy: true, why: why.clone() });
            why
        }
    };
    host.log.notice(&format!("the second site {address} is let go: {why}"));
    host.site.note_follower(|followers| {
        followers.remove(&number);
    });
}

struct Link<'a> {
    host: &'a Arc<Host>,
    number: u64,
    line: &'a mut Line,
    /// What was sent last.
    moment: UnixMillis,
    /// Since when the other side has lacked something.
    lacking: Option<Instant>,
    /// The copy that was sent, until the other side has all of it.
    copied: Option<Arc<SiteCopy>>,
}

impl Link<'_> {
    fn run(mut self, place: Option<(u128, Vec<u64>)>, copy: Option<(u128, u64)>) -> End {
        match self.send_all(place, copy) {
            Ok(never) => match never {},
            Err(end) => end,
        }
    }

    fn send_all(
        &mut self,
        place: Option<(u128, Vec<u64>)>,
        copy: Option<(u128, u64)>,
    ) -> Result<std::convert::Infallible, End> {
        let cluster = self.host.site.cluster;
        self.line.send(&Frame::Hello { cluster, level: Some(self.level()) })?;
        let (places, moment, is_copy) = match place {
            Some((wanted, _)) if wanted != cluster => {
                return Err(End::Gone("it has followed another cluster".to_owned()));
            }
            Some((_, mut places)) => {
                // Behind the places stands the moment up to which all has been carried out.
                let moment = places.pop().unwrap_or(0).cast_signed();
                (places, UnixMillis(moment), false)
            }
            None => {
                let (places, moment) = self.copy(copy)?;
                (places, moment, true)
            }
        };
        let mut reading = self.open(&places)?;
        let site = &self.host.site;
        {
            let mut figures = lock(&site.figures);
            if is_copy { figures.copy_count += 1 } else { figures.continued_count += 1 }
        }
        self.note(|figures| figures.state = "online");
        self.host.log.notice(&format!("the second site of link {} is told what changes", self.number));
        let mut teller = Teller::new(places, moment, reading.reader.beginning(), SITE_STEPS_AHEAD);
        let (mut sent, mut told) = (Instant::now(), None::<Instant>);
        let mut level = self.level();
        loop {
            let is_at_end = self.read(&mut reading, &mut teller)?;
            // What was read may be of a level that has risen meanwhile: that is told first.
            if self.level() > level {
                level = self.level();
                self.say_alive()?;
            }
            let is_due = !is_at_end || sent.elapsed() >= SITE_BATCH_INTERVAL;
            let mut has_sent = false;
            let next = |teller: &mut Teller| {
                let batch = if is_due { teller.batch() } else { Ok(None) };
                batch.map_err(|_| End::Gone("the backlog begins behind it, or a log has lost what it has".to_owned()))
            };
            while let Some(batch) = next(&mut teller)? {
                self.moment = batch.moment;
                self.line.send(&Frame::Batch(batch))?;
                self.hear()?;
                (has_sent, sent) = (true, Instant::now());
            }
            teller.settle(has_sent, is_at_end);
            if has_sent || told.is_none_or(|told| told.elapsed() >= SITE_STATE_INTERVAL) {
                told = Some(Instant::now());
                let state = teller.state(&reading.read, is_at_end, clock::now().unix, self.pending(&reading));
                let is_level = teller.is_level(&reading.read, is_at_end);
                self.say(state, is_level)?;
            }
            self.hear()?;
            if is_at_end && !has_sent {
                site.wait(SITE_BATCH_INTERVAL);
            }
            if lock(&site.kept).is_over {
                return Err(End::Cut("this node keeps no backlog any more, or ends".to_owned()));
            }
        }
    }

    fn say(&mut self, state: State, is_level: bool) -> Result<(), End> {
        let pending_bytes = state.pending_bytes;
        if is_level {
            self.moment = self.moment.max(state.moment);
        }
        self.line.send(&Frame::State(State { level: Some(self.level()), ..state }))?;
        self.tell(pending_bytes, is_level);
        Ok(())
    }

    /// Nothing in the logs here is of a higher level.
    fn level(&self) -> Level {
        self.host.floor.voice().floor
    }

    /// Lets the other side know that this one is here.
    fn say_alive(&mut self) -> Result<(), End> {
        self.say(State { now: clock::now().unix, ..State::default() }, false)
    }

    /// Sends a copy, or the rest of one; answers behind which places it was cut, and a moment that nothing before them
    /// is behind.
    fn copy(&mut self, wanted: Option<(u128, u64)>) -> Result<(Vec<u64>, UnixMillis), End> {
        self.note(|figures| figures.state = "copying");
        let found = wanted.and_then(|(id, offset)| {
            let copy = self.host.site.copies.find(id, offset)?;
            // What came behind it is of no use if it is not there any more.
            self.open(&copy.places).is_ok().then_some((copy, offset))
        });
        let (copy, mut offset) = match found {
            Some(found) => found,
            None => (Arc::new(self.make_copy()?), 0),
        };
        let (bytes, places, moment) = (copy.bytes, copy.places.clone(), copy.moment);
        let log = &self.host.log;
        log.notice(&format!("a copy for a second site is sent: {bytes} bytes, from byte {offset} on"));
        if wanted.is_some() {
            self.host.site.copies.keep(&copy);
            self.line.send(&Frame::CopyFrom { id: copy.id, offset, places: places.clone(), moment, bytes })?;
        } else {
            self.line.send(&Frame::Copy { places: places.clone(), moment, bytes })?;
        }
        while offset < bytes {
            let left = bytes - offset;
            let mut piece = vec![0; PIECE_BYTES.min(usize::try_from(left).unwrap_or(PIECE_BYTES))];
            copy.read(&mut piece, offset)?;
            offset += piece.len() as u64;
            self.line.send(&Frame::Piece(piece))?;
            self.hear()?;
            self.tell(bytes - offset, false);
        }
        self.copied = Some(copy);
        Ok((places, moment))
    }

    fn make_copy(&mut self) -> Result<SiteCopy, End> {
        let begun = Instant::now();
        let copy = loop {
            match Begun::begin(self.host) {
                Ok(copy) => break copy,
                Err(why) if begun.elapsed() > SITE_SILENCE_MAX => return Err(End::Cut(format!("no copy: {why}"))),
                Err(_) => std::thread::sleep(COPY_RETRY),
            }
            self.say_alive()?;
            self.hear()?;
        };
        // By then entries of all groups are told that had a later moment than the clock of the node that cut them.
        self.host.site.wait_until_kept();
        let (places, latest) = (copy.places.clone(), lock(&self.host.site.kept).latest);
        let moment = copy.moment().max(latest);
        let directory = lock(&self.host.site.kept).directory.clone();
        let (told, outcome) = std::sync::mpsc::channel();
        std::thread::Builder::new().name("copy".to_owned()).spawn(move || told.send(copy.requests(&directory)))?;
        let (file, bytes) = loop {
            match outcome.recv_timeout(SITE_STATE_INTERVAL) {
                Ok(copied) => break copied.map_err(End::Cut)?,
                Err(RecvTimeoutError::Timeout) => self.say_alive()?,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(End::Cut("no copy: its thread has ended".to_owned()));
                }
            }
        };
        let id = u128::from_le_bytes(crate::entropy::random_bytes()?);
        Ok(SiteCopy { id, file, bytes, places, moment })
    }

    /// The newest place in the backlog from which all comes that is behind these places.
    fn open(&self, places: &[u64]) -> Result<Reading, End> {
        let reading = Reading::open_behind(&self.host.site, places)?;
        reading.ok_or_else(|| End::Gone("what it lacks is not in the backlog (site-backlog-size) any more".to_owned()))
    }

    /// Reads until there is enough for large batches; true if there is no more.
    fn read(&self, reading: &mut Reading, teller: &mut Teller) -> Result<bool, End> {
        while teller.wants_more() {
            match reading.next(&self.host.site)? {
                Some(tape) => teller.push(tape),
                None => return Ok(true),
            }
        }
        Ok(false)
    }

    /// Bytes and steps of the backlog behind the place where it is read.
    fn pending(&self, reading: &Reading) -> (u64, u64) {
        let kept = lock(&self.host.site.kept);
        let behind = kept.segments.iter().filter(|segment| segment.sequence >= reading.sequence);
        let (bytes, steps) =
            behind.fold((0, 0), |(bytes, steps): (u64, u64), segment| (bytes + segment.bytes, steps + segment.steps));
        (bytes.saturating_sub(reading.reader.offset()), steps.saturating_sub(reading.reader.steps()))
    }

    /// Hears what the other side has kept.
    fn hear(&mut self) -> Result<(), End> {
        let moment = self.line.hear()?;
        if let Some(moment) = moment {
            self.note(|figures| figures.moment_ms = moment.0);
            if let Some(copy) = self.copied.take_if(|copy| moment >= copy.moment) {
                self.host.site.copies.forget(copy.id);
            }
        }
        Ok(())
    }

    fn tell(&mut self, pending_bytes: u64, is_level: bool) {
        let (raw_bytes, carried_bytes, acknowledged) = (self.line.raw_bytes, self.line.carried_bytes, self.line.moment);
        let has_all = is_level && acknowledged >= self.moment;
        if has_all {
            self.lacking = None;
        }
        let lag = if has_all { Duration::ZERO } else { self.lacking.get_or_insert_with(Instant::now).elapsed() };
        // What it has shows better how old it is than since when it has lacked something.
        let age_ms = if has_all || acknowledged.0 == 0 { 0 } else { (clock::now().unix.0 - acknowledged.0).max(0) };
        let lag_ms = if acknowledged.0 == 0 { lag.as_millis() as u64 } else { age_ms.cast_unsigned() };
        self.note(|figures| {
            (figures.raw_bytes, figures.carried_bytes) = (raw_bytes, carried_bytes);
            (figures.pending_bytes, figures.lag_ms) = (pending_bytes, lag_ms);
        });
    }

    fn note(&self, change: impl FnOnce(&mut SiteFollower)) {
        self.host.site.note_follower(|followers| {
            if let Some(figures) = followers.get_mut(&self.number) {
                change(figures);
            }
        });
    }
}

/// The connection, compressed in one direction.
struct Line {
    stream: Stream,
    poll: Poll,
    events: Events,
    encoder: zstd::stream::write::Encoder<'static, Vec<u8>>,
    frame: Vec<u8>,
    raw_bytes: u64,
    carried_bytes: u64,
    heard: Vec<u8>,
    /// What the other side has kept.
    moment: UnixMillis,
}

impl Line {
    fn new(mut stream: Stream, level: i32) -> io::Result<Self> {
        let poll = Poll::new()?;
        stream.register(poll.registry(), Token(0))?;
        let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), level)?;
        encoder.window_log(WINDOW_LOG)?;
        encoder.long_distance_matching(true)?;
        let (frame, heard) = (Vec::new(), Vec::new());
        let events = Events::with_capacity(4);
        Ok(Self { stream, poll, events, encoder, frame, raw_bytes: 0, carried_bytes: 0, heard, moment: UnixMillis(0) })
    }

    /// Sends a frame, at the pace of the line.
    fn send(&mut self, frame: &Frame) -> io::Result<()> {
        self.frame.clear();
        frame.encode(&mut self.frame);
        self.raw_bytes += self.frame.len() as u64;
        self.encoder.write_all(&self.frame)?;
        self.encoder.flush()?;
        let bytes = std::mem::take(self.encoder.get_mut());
        let mut rest = &bytes[..];
        let mut moved = Instant::now();
        while !rest.is_empty() {
            match self.stream.write(rest) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.carried_bytes += count as u64;
                    rest = &rest[count..];
                    moved = Instant::now();
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if moved.elapsed() > SITE_SILENCE_MAX {
                        return Err(io::Error::new(ErrorKind::TimedOut, "the line takes nothing"));
                    }
                    self.poll.poll(&mut self.events, Some(SITE_BATCH_INTERVAL)).or_else(interrupted)?;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// What the other side has said that it has kept, if it has said anything.
    fn hear(&mut self) -> io::Result<Option<UnixMillis>> {
        let mut buffer = [0; 512];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(io::Error::new(ErrorKind::UnexpectedEof, "the other side has hung up")),
                Ok(count) => self.heard.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let whole = self.heard.len() / 8 * 8;
        let last = self.heard[..whole].chunks_exact(8).last();
        let moment = last.map(|bytes| UnixMillis(i64::from_le_bytes(bytes.try_into().expect("eight bytes"))));
        self.heard.drain(..whole);
        self.moment = moment.unwrap_or(self.moment);
        Ok(moment)
    }
}

fn interrupted(error: io::Error) -> io::Result<()> {
    if error.kind() == ErrorKind::Interrupted { Ok(()) } else { Err(error) }
}
