//! Tells clients what has changed, from one cursor to the next: a thread for all of them.
//!
//! A request travels here and back; the connection stays with its core. Between two requests of a client a reader is
//! kept that stands where the first has ended, so that the next need not look for that place. Such readers cost memory,
//! so there are few, and they are forgotten soon. For whoever comes back later the place is found on disk, by the
//! cursor alone.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use node::event::{ChangesRequest, ChangesWish, Event as CoreEvent};
use resp::{Protocol, Writer};
use stdx::UnixMillis;

use super::backlog::Segment;
use super::cursor::Cursor;
use super::filter::Filter;
use super::merge::{Event, Merger, Unprepared};
use super::reading::{Lacking, Reading};
use super::{Kept, Site, lock};
use crate::host::Host;
use crate::limits::{
    CHANGES_ANSWER_BYTES, CHANGES_INTERVAL, CHANGES_KEPT_FOR, CHANGES_KEPT_MAX, CHANGES_REQUESTS_MAX,
    CHANGES_TURN_BYTES, CHANGES_TURN_TAPES,
};
use crate::mailbox::Mail;

/// Where the backlog of this node begins, for a reader: of groups that were told of at different moments, behind the
/// latest of these.
fn first_moment(segment: &Segment) -> UnixMillis {
    segment.places.iter().map(|place| place.moment).max().unwrap_or_default()
}

impl Site {
    /// A client wants to know what has changed.
    pub fn tell_changes(&self, request: ChangesRequest) {
        lock(&self.kept).asked.push(request);
        self.changed.notify_all();
    }
}

/// Serves clients until the process ends.
pub fn run(host: &Arc<Host>) {
    if !host.site.is_on {
        // Cores turn away who asks.
        return;
    }
    let mut desk = Desk { host, waiting: Vec::new(), idle: VecDeque::new(), version: 0 };
    loop {
        let is_over = desk.wait();
        if is_over && lock(&host.site.figures).fault.is_empty() {
            // The process ends, and with it every connection.
            return;
        }
        desk.turn(is_over);
    }
}

struct Desk<'a> {
    host: &'a Arc<Host>,
    waiting: Vec<Waiting>,
    /// Readers of requests that were answered, the one that was used last behind the others.
    idle: VecDeque<Idle>,
    /// What of the backlog was looked at.
    version: u64,
}

struct Idle {
    cursor: String,
    reader: Reader,
    since: Instant,
}

/// A request that has not been answered.
struct Waiting {
    request: ChangesRequest,
    patience: Patience,
    /// The reader, and what it has found.
    reading: Option<(Reader, Page)>,
    /// It has looked at all that there is.
    is_at_end: bool,
}

/// How long a request waits for something to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Patience {
    None,
    Until(Instant),
    Endless,
}

impl Patience {
    fn of(wish: &ChangesWish) -> Self {
        match wish {
            ChangesWish::Read { block_ms: Some(duration_ms), .. } if *duration_ms > 0 => {
                Instant::now().checked_add(Duration::from_millis(*duration_ms)).map_or(Self::Endless, Self::Until)
            }
            ChangesWish::Read { block_ms: Some(_), .. } => Self::Endless,
            _ => Self::None,
        }
    }

    fn is_over(self) -> bool {
        match self {
            Self::None => true,
            Self::Until(until) => until <= Instant::now(),
            Self::Endless => false,
        }
    }
}

/// Events that will be answered.
#[derive(Debug, Default)]
struct Page {
    bytes: Vec<u8>,
    count: usize,
}

/// What has become of a request in one turn.
enum Outcome {
    Answer(Result<Vec<u8>, String>),
    /// There is more to look at.
    More,
    /// It waits for something to happen.
    AtEnd,
}

impl Desk<'_> {
    /// Waits until there is something to do, and takes new requests; true if there is no backlog any more.
    fn wait(&mut self) -> bool {
        let site = &self.host.site;
        let has_work = |waiting: &Waiting| !waiting.is_at_end;
        let mut kept = lock(&site.kept);
        if !self.waiting.iter().any(has_work) && kept.asked.is_empty() {
            let until = |waiting: &Waiting| match waiting.patience {
                Patience::Until(until) => Some(until.saturating_duration_since(Instant::now())),
                _ => None,
            };
            // Now and then it is looked whether clients are still there.
            let patience =
                self.waiting.iter().filter_map(until).min().unwrap_or(CHANGES_KEPT_FOR).min(CHANGES_KEPT_FOR);
            let is_idle =
                |kept: &mut Kept| kept.asked.is_empty() && (kept.version == self.version || self.waiting.is_empty());
            kept = match site.changed.wait_timeout_while(kept, patience, is_idle) {
                Ok((kept, _)) => kept,
                Err(poisoned) => poisoned.into_inner().0,
            };
            if kept.asked.is_empty() && !kept.is_over {
                // Many small additions are looked at together.
                drop(kept);
                std::thread::sleep(CHANGES_INTERVAL.min(patience));
                kept = lock(&site.kept);
            }
        }
        self.version = kept.version;
        let requests = std::mem::take(&mut kept.asked);
        let is_over = kept.is_over;
        drop(kept);
        self.waiting.iter_mut().for_each(|waiting| waiting.is_at_end = false);
        for request in requests {
            if self.waiting.len() >= CHANGES_REQUESTS_MAX {
                self.answer(request, Err("ERR Too many clients wait for changes at this node".to_owned()));
                continue;
            }
            let patience = Patience::of(&request.wish);
            self.waiting.push(Waiting { request, patience, reading: None, is_at_end: false });
        }
        is_over
    }

    /// Carries each request a bit further.
    fn turn(&mut self, is_over: bool) {
        for mut waiting in std::mem::take(&mut self.waiting) {
            if waiting.request.asker.strong_count() == 0 {
                continue;
            }
            if is_over {
                let why = "ERR The backlog of this node cannot be written any more: ask another one";
                self.answer(waiting.request, Err(why.to_owned()));
                continue;
            }
            match self.carry_on(&mut waiting).unwrap_or_else(|refusal| Outcome::Answer(Err(refusal))) {
                Outcome::Answer(answer) => self.answer(waiting.request, answer),
                Outcome::More => self.waiting.push(waiting),
                Outcome::AtEnd => {
                    waiting.is_at_end = true;
                    self.waiting.push(waiting);
                }
            }
        }
        while self
            .idle
            .front()
            .is_some_and(|idle| idle.since.elapsed() >= CHANGES_KEPT_FOR || self.idle.len() > CHANGES_KEPT_MAX)
        {
            self.idle.pop_front();
        }
    }

    fn answer(&self, request: ChangesRequest, answer: Result<Vec<u8>, String>) {
        let ChangesRequest { core, session, ticket, .. } = request;
        let event = CoreEvent::Changes { session, ticket, answer };
        self.host.desks[usize::from(core.0)].mailbox.post(Mail::Event(event));
    }

    fn carry_on(&mut self, waiting: &mut Waiting) -> Result<Outcome, String> {
        let ChangesWish::Read { cursor, count, patterns, types, wants_expired, .. } = &waiting.request.wish else {
            return Ok(Outcome::Answer(self.info()));
        };
        let filter = Filter { patterns, types, wants_expired: *wants_expired };
        let (mut reader, mut page) = match waiting.reading.take() {
            Some(reading) => reading,
            None => (self.reader_at(cursor)?, Page::default()),
        };
        let reached = reader.advance(&self.host.site, *count, &filter, &mut page).map_err(|why| self.refusal(why))?;
        let is_complete = match reached {
            Reached::Full => true,
            Reached::End => page.count > 0 || waiting.patience.is_over(),
            Reached::Budget => false,
        };
        if is_complete {
            let cursor = reader.cursor.encode();
            let mut writer = Writer::new(Protocol::Resp2);
            writer.array(2);
            writer.bulk(cursor.as_bytes());
            writer.array(page.count);
            writer.raw(&page.bytes);
            self.idle.push_back(Idle { cursor, reader, since: Instant::now() });
            return Ok(Outcome::Answer(Ok(writer.into_bytes())));
        }
        waiting.reading = Some((reader, page));
        Ok(if matches!(reached, Reached::End) { Outcome::AtEnd } else { Outcome::More })
    }

    /// A reader that goes on where a client says.
    fn reader_at(&mut self, word: &[u8]) -> Result<Reader, String> {
        if let Some(place) = self.idle.iter().rposition(|idle| idle.cursor.as_bytes() == word) {
            return Ok(self.idle.remove(place).expect("just found").reader);
        }
        let site = &self.host.site;
        let (first, closed) = self.bounds()?;
        let cursor = match word {
            b"0" => Cursor::behind(site.cluster, first, Vec::new()),
            b"$" => Cursor::behind(site.cluster, closed, Vec::new()),
            _ => Cursor::decode(word).ok_or_else(|| "ERR invalid cursor".to_owned())?,
        };
        if cursor.cluster != site.cluster {
            return Err("ERR The cursor is one of another cluster".to_owned());
        }
        let base = cursor.base;
        let reader = Reader::open(site, cursor).map_err(|error| self.refusal(Stopped::from(error)))?;
        reader.ok_or_else(|| {
            format!(
                "TOOOLD What changed between {} and {} (milliseconds) is not kept at this node any more, see \
                 site-backlog-size: ask another node, or go on from 0 without it",
                base.0, first.0
            )
        })
    }

    /// The moment behind which changes are kept here, and the one up to which they are known.
    fn bounds(&self) -> Result<(UnixMillis, UnixMillis), String> {
        let kept = lock(&self.host.site.kept);
        let first = kept.segments.first().map(first_moment);
        let first = first.ok_or_else(|| "TRYAGAIN The backlog of this node is being opened".to_owned())?;
        Ok((first, kept.closed.max(first)))
    }

    fn refusal(&self, stopped: Stopped) -> String {
        match stopped {
            Stopped::Lacking(Lacking::Fault(error)) => {
                self.host
                    .log
                    .warning(&format!("the backlog cannot be read, and a client is not told what changes: {error}"));
                format!("ERR The backlog of this node cannot be read: {error}")
            }
            Stopped::Lacking(Lacking::Gone(why)) => {
                format!("TOOOLD A reader is stopped: {why}. Ask another node, or go on from 0 without it")
            }
            Stopped::OtherPast => "TOOOLD A log of the cluster has lost what this cursor has read, or the backlog of \
                                   this node begins in the middle of a transaction: ask another node, or go on from 0"
                .to_owned(),
        }
    }

    fn info(&self) -> Result<Vec<u8>, String> {
        let (first, closed) = self.bounds()?;
        let site = &self.host.site;
        let bytes = lock(&site.figures).backlog_bytes;
        let cursor = |moment| Cursor::behind(site.cluster, moment, Vec::new()).encode();
        let fields = [
            ("cluster", format!("{:032x}", site.cluster)),
            ("first-moment-ms", first.0.to_string()),
            ("first-cursor", cursor(first)),
            ("last-moment-ms", closed.0.to_string()),
            ("last-cursor", cursor(closed)),
            ("backlog-bytes", bytes.to_string()),
            ("waiting-requests", self.waiting.len().to_string()),
            ("kept-readers", self.idle.len().to_string()),
        ];
        let mut writer = Writer::new(Protocol::Resp2);
        writer.array(fields.len() * 2);
        for (name, value) in fields {
            writer.bulk(name.as_bytes());
            writer.bulk(value.as_bytes());
        }
        Ok(writer.into_bytes())
    }
}

/// Why a reader cannot go on.
#[derive(Debug)]
enum Stopped {
    Lacking(Lacking),
    OtherPast,
}

impl From<Lacking> for Stopped {
    fn from(lacking: Lacking) -> Self {
        Self::Lacking(lacking)
    }
}

impl From<std::io::Error> for Stopped {
    fn from(error: std::io::Error) -> Self {
        Self::Lacking(error.into())
    }
}

impl From<Unprepared> for Stopped {
    fn from(_: Unprepared) -> Self {
        Self::OtherPast
    }
}

/// How far a reader has come in one turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reached {
    /// The page is full.
    Full,
    /// There is no more.
    End,
    /// It has had its share of this turn.
    Budget,
}

/// Reads on from a cursor.
struct Reader {
    reading: Reading,
    merger: Merger,
    /// What has been read and not handed out.
    events: VecDeque<Event>,
    /// All up to here has been when these are: a moment, and the places of groups.
    end: Option<(UnixMillis, Vec<u64>)>,
    /// Up to here it has been handed out.
    cursor: Cursor,
}

impl Reader {
    /// One that goes on there; none if that is not in the backlog any more.
    fn open(site: &Site, cursor: Cursor) -> std::io::Result<Option<Self>> {
        let holds_all = |segment: &Segment| first_moment(segment) <= cursor.base;
        let Some(mut reading) = Reading::open(site, holds_all)? else { return Ok(None) };
        let mut merger = Merger::behind(cursor.base, cursor.places.clone(), reading.read.clone());
        reading.beginning().into_iter().for_each(|tape| merger.push(tape));
        Ok(Some(Self { reading, merger, events: VecDeque::new(), end: None, cursor }))
    }

    /// Puts events onto a page, until it is full or there is no more.
    fn advance(&mut self, site: &Site, count: usize, filter: &Filter<'_>, page: &mut Page) -> Result<Reached, Stopped> {
        let mut bytes_read = 0;
        loop {
            if self.hand_out(count, filter, page) {
                return Ok(Reached::Full);
            }
            if let Some(next) = self.merger.next_events()? {
                self.events = next.events.into();
                self.end = Some((next.moment, next.places));
                continue;
            }
            if bytes_read >= CHANGES_TURN_BYTES {
                return Ok(Reached::Budget);
            }
            // One by one they would make batches of one event each, where there are many.
            for number in 0..CHANGES_TURN_TAPES {
                let begin = self.reading.reader.offset();
                let Some(tape) = self.reading.next(site)? else {
                    if number > 0 {
                        break;
                    }
                    return Ok(Reached::End);
                };
                bytes_read += self.reading.reader.offset().saturating_sub(begin);
                self.merger.push(tape);
                if bytes_read >= CHANGES_TURN_BYTES {
                    break;
                }
            }
        }
    }

    /// Puts what has been read onto a page; true if it is full.
    fn hand_out(&mut self, count: usize, filter: &Filter<'_>, page: &mut Page) -> bool {
        while let Some(event) = self.events.front() {
            // Sweeps behind one event have its number, so a page that ended among them would be followed by itself.
            let place = (self.cursor.moment, self.cursor.number);
            let is_one_more = page.count > 0 && event.is_sweep && (event.moment, event.number) == place;
            if is_one_more {
                // All of them are handed out together.
            } else if page.count >= count || page.bytes.len() >= CHANGES_ANSWER_BYTES {
                return true;
            }
            let (id, known) = ((event.moment, event.number), place);
            // A sweep has the number of the event before it, and comes twice rather than never.
            let is_new = if event.is_sweep { id >= known } else { id > known };
            if is_new {
                (self.cursor.moment, self.cursor.number) = id;
                page.count += usize::from(filter.put(event, &mut page.bytes));
            }
            self.events.pop_front();
        }
        if let Some((moment, places)) = self.end.take() {
            (self.cursor.base, self.cursor.places) = (moment, places);
            if self.cursor.moment <= moment {
                (self.cursor.moment, self.cursor.number) = (moment, u64::MAX);
            }
        }
        page.count >= count || page.bytes.len() >= CHANGES_ANSWER_BYTES
    }
}
