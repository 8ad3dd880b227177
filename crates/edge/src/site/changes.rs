//! Tells clients what has changed, from one cursor to the next: a thread for all of them.
//!
//! A request travels here and back; the connection stays with its core. Between two requests of a client a reader is
//! kept that stands where the first has ended, so that the next need not look for that place. Such readers cost memory,
//! so there are few, and they are forgotten soon. For a reader that comes back later the place is found on disk, by the
//! cursor alone.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use node::event::{ChangesForm, ChangesRequest, ChangesWish, Event as CoreEvent};
use resp::{Protocol, Writer};
use site::merge::{Event, Merger, Unprepared};
use stdx::UnixMillis;

use super::cursor::Cursor;
use super::filter::Filter;
use super::reading::Lacking;
use super::trail::{Beginning, Next, Stop, Trail};
use super::{Kept, Site, lock};
use crate::host::Host;
use crate::limits::{
    CHANGES_ANSWER_BYTES, CHANGES_HELD_BYTES_EACH, CHANGES_HELD_BYTES_MAX, CHANGES_INTERVAL, CHANGES_KEPT_FOR,
    CHANGES_KEPT_MAX, CHANGES_OPENING_PATIENCE, CHANGES_REQUESTS_MAX, CHANGES_TURN_BYTES, CHANGES_TURN_TAPES,
};
use crate::mailbox::Mail;

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
        // Cores turn clients away that ask.
        return;
    }
    let mut desk = Desk { host, waiting: Vec::new(), idle: VecDeque::new(), version: 0, held_bytes_max: 0 };
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
    /// Bytes that a reader may keep of what groups have done while they wait for another one.
    held_bytes_max: usize,
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
    /// Until when it waits for the groups to tell where the backlog begins; none when they have.
    opening: Option<Instant>,
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
    /// The last of them.
    last: Option<(UnixMillis, u64)>,
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
            let until = |waiting: &Waiting| {
                let until = waiting.opening.or(match waiting.patience {
                    Patience::Until(until) => Some(until),
                    _ => None,
                });
                until.map(|until| until.saturating_duration_since(Instant::now()))
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
            let opened = Instant::now() + CHANGES_OPENING_PATIENCE;
            let opening = match (&request.wish, patience) {
                (ChangesWish::Read { .. }, Patience::Until(until)) => Some(until.min(opened)),
                (ChangesWish::Read { .. }, _) => Some(opened),
                _ => None,
            };
            self.waiting.push(Waiting { request, patience, opening, reading: None, is_at_end: false });
        }
        is_over
    }

    /// Carries each request a bit further.
    fn turn(&mut self, is_over: bool) {
        let reader_count = self.waiting.len() + self.idle.len();
        self.held_bytes_max = (CHANGES_HELD_BYTES_MAX / reader_count.max(1)).min(CHANGES_HELD_BYTES_EACH);
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
        if let Some(until) = waiting.opening {
            if self.bounds().is_err() && Instant::now() < until {
                return Ok(Outcome::AtEnd);
            }
            waiting.opening = None;
        }
        let ChangesWish::Read { cursor, count, patterns, types, wants_expired, form, .. } = &waiting.request.wish
        else {
            return Ok(Outcome::Answer(self.info()));
        };
        let is_stream = matches!(form, ChangesForm::Stream(..));
        let filter = Filter { patterns, types, wants_expired: *wants_expired, is_stream };
        let (mut reader, mut page) = match waiting.reading.take() {
            Some(reading) => reading,
            None => (self.reader_at(cursor, is_stream)?, Page::default()),
        };
        let reached = reader.advance((&self.host.site, self.held_bytes_max), *count, &filter, &mut page);
        let reached = reached.map_err(|why| self.refusal(why, &reader.cursor))?;
        let is_complete = match reached {
            Reached::Full => true,
            Reached::End => page.count > 0 || waiting.patience.is_over(),
            Reached::Wait | Reached::Budget => false,
        };
        if is_complete {
            let (bytes, cursor) = match form {
                ChangesForm::Events => page.answer(&reader.cursor),
                ChangesForm::Stream(name, protocol) => page.answer_as_stream(name, *protocol, cursor),
            };
            self.idle.push_back(Idle { cursor, reader, since: Instant::now() });
            return Ok(Outcome::Answer(Ok(bytes)));
        }
        waiting.reading = Some((reader, page));
        Ok(if matches!(reached, Reached::End | Reached::Wait) { Outcome::AtEnd } else { Outcome::More })
    }

    /// A reader that goes on where a client says.
    fn reader_at(&mut self, word: &[u8], is_stream: bool) -> Result<Reader, String> {
        // `$` and such mean something else each time.
        let is_known = |idle: &Idle| idle.cursor.as_bytes() == word && idle.cursor.len() > 1;
        if let Some(place) = self.idle.iter().rposition(is_known) {
            return Ok(self.idle.remove(place).expect("just found").reader);
        }
        let site = &self.host.site;
        let (first, closed) = self.bounds()?;
        let cursor = match word {
            b"0" => Cursor::behind(site.cluster, first, Vec::new()),
            b"0-0" if is_stream => Cursor::behind(site.cluster, first, Vec::new()),
            b"$" => Cursor::behind(site.cluster, closed, Vec::new()),
            _ if is_stream => cursor_of(word, site.cluster)?,
            [b'@', digits @ ..] => Cursor::behind(site.cluster, moment_of(digits)?.min(closed), Vec::new()),
            _ => Cursor::decode(word).ok_or_else(|| "ERR invalid cursor".to_owned())?,
        };
        if cursor.cluster != site.cluster {
            return Err("ERR The cursor is one of another cluster".to_owned());
        }
        let trail =
            Trail::behind(site, cursor.base).map_err(|error| self.refusal(Stop::from(error).into(), &cursor))?;
        let Some(trail) = trail else { return Err(self.refusal(Stop::TooOld.into(), &cursor)) };
        Ok(Reader { trail, ahead: None, merger: None, events: VecDeque::new(), end: None, cursor })
    }

    fn bounds(&self) -> Result<(UnixMillis, UnixMillis), String> {
        self.host.site.bounds().ok_or_else(|| "TRYAGAIN The backlog of this node is being opened".to_owned())
    }

    fn refusal(&self, stopped: Stopped, cursor: &Cursor) -> String {
        match stopped {
            Stopped::Trail(Stop::Lacking(Lacking::Fault(error))) => {
                let log = &self.host.log;
                log.warning(&format!("what changed cannot be read, and a client is not told of it: {error}"));
                format!("ERR What changed cannot be read at this node: {error}")
            }
            Stopped::Trail(Stop::Slow) => "TRYAGAIN The archive does not answer".to_owned(),
            Stopped::Trail(Stop::TooOld) => {
                let first = match self.bounds() {
                    Ok((first, _)) => first.0,
                    Err(refusal) => return refusal,
                };
                let (and_archive, base) =
                    (self.host.site.shelf.as_ref().map_or("", |_| ", nor in the archive"), cursor.base.0);
                format!(
                    "TOOOLD What changed between {base} and {first} (milliseconds) is not kept at this node any \
                     more{and_archive}, see site-backlog-size: ask another node, or go on from 0 without it"
                )
            }
            Stopped::Trail(Stop::Lacking(Lacking::Gone(why))) => {
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
    Trail(Stop),
    OtherPast,
}

impl From<Stop> for Stopped {
    fn from(stop: Stop) -> Self {
        Self::Trail(stop)
    }
}

impl From<Unprepared> for Stopped {
    fn from(_: Unprepared) -> Self {
        Self::OtherPast
    }
}

/// A cursor behind the entry of a stream that has this id.
fn cursor_of(id: &[u8], cluster: u128) -> Result<Cursor, String> {
    let number = |digits: &str| digits.parse::<u64>().ok().filter(|_| digits.bytes().all(|byte| byte.is_ascii_digit()));
    let read = || {
        let text = std::str::from_utf8(id).ok()?;
        let (moment, number_text) = text.split_once('-').unwrap_or((text, "0"));
        let moment = UnixMillis(i64::try_from(number(moment)?).ok()?);
        let base = UnixMillis(moment.0.saturating_sub(1));
        Some(Cursor { cluster, base, places: Vec::new(), moment, number: number(number_text)? })
    };
    read().ok_or_else(|| "ERR Invalid stream ID specified as stream command argument".to_owned())
}

impl Page {
    /// The answer, and the cursor in it.
    fn answer(&self, cursor: &Cursor) -> (Vec<u8>, String) {
        let cursor = cursor.encode();
        let mut writer = Writer::new(Protocol::Resp2);
        writer.array(2);
        writer.bulk(cursor.as_bytes());
        writer.array(self.count);
        writer.raw(&self.bytes);
        (writer.into_bytes(), cursor)
    }

    /// The same as XREAD answers, and the id with which a client goes on.
    fn answer_as_stream(&self, name: &[u8], protocol: Protocol, asked: &[u8]) -> (Vec<u8>, String) {
        let mut writer = Writer::new(protocol);
        let Some((moment, number)) = self.last else {
            writer.null_array();
            return (writer.into_bytes(), String::from_utf8_lossy(asked).into_owned());
        };
        match protocol {
            Protocol::Resp2 => {
                writer.array(1);
                writer.array(2);
            }
            Protocol::Resp3 => writer.map(1),
        }
        writer.bulk(name);
        writer.array(self.count);
        writer.raw(&self.bytes);
        (writer.into_bytes(), format!("{}-{number}", moment.0))
    }
}

/// The moment that a client writes behind `@`, in milliseconds since 1970.
fn moment_of(digits: &[u8]) -> Result<UnixMillis, String> {
    let number = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse::<u64>().ok());
    let moment = number.and_then(|number| i64::try_from(number).ok());
    moment.map(UnixMillis).ok_or_else(|| "ERR invalid cursor".to_owned())
}

/// How far a reader has come in one turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reached {
    /// The page is full.
    Full,
    /// There is no more.
    End,
    /// What comes next is being fetched.
    Wait,
    /// It has had its share of this turn.
    Budget,
}

/// Reads on from a cursor.
struct Reader {
    trail: Trail,
    /// Where a group is read ahead, for which the others wait, while they have told so much that no more is kept.
    ahead: Option<(u32, Trail)>,
    /// None as long as it is not known where it begins.
    merger: Option<Merger>,
    /// What has been read and not handed out.
    events: VecDeque<Event>,
    /// All up to here has been when these are: a moment, and the places of groups.
    end: Option<(UnixMillis, Vec<u64>)>,
    /// Up to here it has been handed out.
    cursor: Cursor,
}

impl Reader {
    /// Brings groups together from where it begins; none if that is being fetched.
    fn merger(&mut self) -> Result<Option<&mut Merger>, Stop> {
        if self.merger.is_none() {
            let Some(Beginning { tapes, places }) = self.trail.begin()? else { return Ok(None) };
            let mut merger = Merger::behind(self.cursor.base, self.cursor.places.clone(), places);
            tapes.into_iter().for_each(|tape| merger.push(tape));
            self.merger = Some(merger);
        }
        Ok(self.merger.as_mut())
    }

    /// Puts events onto a page, until it is full or there is no more.
    fn advance(
        &mut self,
        (site, held_bytes_max): (&Site, usize),
        count: usize,
        filter: &Filter<'_>,
        page: &mut Page,
    ) -> Result<Reached, Stopped> {
        let mut bytes_read = 0;
        loop {
            if self.hand_out(count, filter, page) {
                return Ok(Reached::Full);
            }
            let Some(merger) = self.merger()? else { return Ok(Reached::Wait) };
            if let Some(next) = merger.next_events()? {
                self.events = next.events.into();
                self.end = Some((next.moment, next.places));
                continue;
            }
            if bytes_read >= CHANGES_TURN_BYTES {
                return Ok(Reached::Budget);
            }
            if self.merger.as_ref().is_some_and(|merger| merger.held_bytes() > held_bytes_max) {
                match self.prefetch(site, &mut bytes_read)? {
                    None => continue,
                    Some(reached) => return Ok(reached),
                }
            }
            // One by one they would make batches of one event each, where there are many.
            for number in 0..CHANGES_TURN_TAPES {
                let begin = self.trail.offset();
                let reached = match self.trail.next(site)? {
                    Next::Tape(tape) => {
                        bytes_read += self.trail.offset().saturating_sub(begin);
                        self.merger.as_mut().expect("just made").push(tape);
                        None
                    }
                    Next::End => Some(Reached::End),
                    Next::Wait => Some(Reached::Wait),
                };
                match reached {
                    Some(_) if number > 0 => break,
                    Some(reached) => return Ok(reached),
                    None => {}
                }
                if bytes_read >= CHANGES_TURN_BYTES {
                    break;
                }
            }
        }
    }

    /// Reads on what the one group has done for which the others wait, and passes over what these do. None if it has
    /// told something.
    fn prefetch(&mut self, site: &Site, bytes_read: &mut u64) -> Result<Option<Reached>, Stop> {
        let merger = self.merger.as_mut().expect("it holds something");
        let Some(group) = merger.awaited() else { return Ok(Some(Reached::End)) };
        let is_other = |(other, ahead): &(u32, Trail)| *other != group || ahead.is_behind(group, &self.trail);
        if self.ahead.as_ref().is_none_or(is_other) {
            self.ahead = Some((group, self.trail.clone()));
        }
        let (_, ahead) = self.ahead.as_mut().expect("just made");
        let mut count = 0;
        let reached = loop {
            if *bytes_read >= CHANGES_TURN_BYTES || count >= CHANGES_TURN_TAPES {
                break Reached::Budget;
            }
            let begin = ahead.offset();
            match ahead.next(site)? {
                Next::Tape(tape) => {
                    *bytes_read += ahead.offset().saturating_sub(begin);
                    if tape.group == group {
                        count += 1;
                        merger.push(tape);
                    }
                }
                Next::End => break Reached::End,
                Next::Wait => break Reached::Wait,
            }
        };
        self.trail.leave_out(group, ahead);
        Ok(Some(reached).filter(|_| count == 0))
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
                if filter.put(event, &mut page.bytes) {
                    page.count += 1;
                    page.last = Some(id);
                }
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

#[cfg(test)]
mod tests {
    use node::settings::Settings;
    use node::{Requests, Step, Tape};
    use site::Admission;

    use super::super::backlog::Backlog;
    use super::super::{prepare, publish};
    use super::*;

    const ALL: Filter<'_> = Filter { patterns: &[], types: &[], wants_expired: false, is_stream: false };

    fn step(index: u64, moment: i64, value: &str) -> Step {
        let mut requests = Requests::default();
        resp::encode_request(&mut requests.bytes, &["SET", "key", value]);
        (requests.runs, requests.count) = (vec![(0, requests.bytes.len())], 1);
        Step { index, moment: UnixMillis(moment), requests, ..Step::default() }
    }

    fn tape(group: u32, from: u64, index: u64, moment: i64, steps: Vec<Step>) -> Tape {
        Tape { group, from, index, moment: UnixMillis(moment), has_gap: false, born: None, steps, standing: Vec::new() }
    }

    /// What a reader is told, and the most bytes that it has kept meanwhile.
    fn read(site: &Site, held_bytes_max: usize) -> (Vec<u8>, usize, usize) {
        let trail = Trail::behind(site, UnixMillis(0)).expect("a disk").expect("all is there");
        let cursor = Cursor::behind(site.cluster, UnixMillis(0), Vec::new());
        let mut reader = Reader { trail, ahead: None, merger: None, events: VecDeque::new(), end: None, cursor };
        let (mut bytes, mut count, mut held) = (Vec::new(), 0, 0);
        loop {
            let mut page = Page::default();
            let reached = loop {
                let reached = reader.advance((site, held_bytes_max), 100, &ALL, &mut page).expect("it is sound");
                held = held.max(reader.merger.as_ref().map_or(0, Merger::held_bytes));
                if reached != Reached::Budget {
                    break reached;
                }
            };
            bytes.extend(page.bytes);
            count += page.count;
            if reached == Reached::End {
                return (bytes, count, held);
            }
        }
    }

    #[test]
    fn a_group_that_is_silent_for_long_costs_no_memory() {
        let folder = std::env::temp_dir().join(format!("holdfast-changes-{}", std::process::id()));
        let (mut backlog, _) = Backlog::open(&folder, (7, 2), 1 << 30).expect("a disk");
        let (site, _heard) = prepare(&Settings::default(), 7);
        let value = "v".repeat(1_000);
        let mut put = |tape: Tape| assert_eq!(backlog.append(tape).expect("a disk"), Admission::GoesOn);
        put(tape(1, 0, 1, 5, vec![step(1, 5, "first")]));
        // One group has no leader, and the other one goes on.
        for index in 1..=3_000 {
            put(tape(0, index - 1, index, 10 + index as i64, vec![step(index, 10 + index as i64, &value)]));
        }
        lock(&site.kept).directory = backlog.directory().to_owned();
        publish(&site, &backlog, true);
        let (_, count, held) = read(&site, 64 << 10);
        assert_eq!(count, 0, "what the silent group does then is not known yet");
        assert!(held < 600_000, "{held} bytes");
        assert!(read(&site, usize::MAX).2 > 3_000_000);
        // It comes back, and has done something earlier by its clock.
        let mut put = |tape: Tape| assert_eq!(backlog.append(tape).expect("a disk"), Admission::GoesOn);
        put(tape(1, 1, 2, 2_000, vec![step(2, 2_000, "second")]));
        put(tape(1, 2, 3, 10_000, vec![step(3, 9_000, "third")]));
        put(tape(0, 3_000, 3_001, 20_000, Vec::new()));
        publish(&site, &backlog, true);
        let (bounded, unbounded) = (read(&site, 64 << 10), read(&site, usize::MAX));
        assert_eq!(bounded.1, 3_003);
        assert!(bounded.0 == unbounded.0, "the same is told");
        assert!(bounded.2 < 600_000 && unbounded.2 > 2_000_000, "{} and {} bytes", bounded.2, unbounded.2);
        assert_eq!(site.bounds(), Some((UnixMillis(0), UnixMillis(9_999))));
        std::fs::remove_dir_all(&folder).expect("it is there");
    }

    /// A backlog that was lost seems to hold everything, as a new one does, until groups tell where they go on.
    #[test]
    fn a_backlog_has_no_bounds_before_all_groups_have_told() {
        let folder = std::env::temp_dir().join(format!("holdfast-bounds-{}", std::process::id()));
        let (mut backlog, _) = Backlog::open(&folder, (7, 2), 1 << 30).expect("a disk");
        let (site, _heard) = prepare(&Settings::default(), 7);
        assert_eq!(site.bounds(), None);
        publish(&site, &backlog, true);
        assert_eq!(site.bounds(), None);
        let mut begin = |tape: Tape| {
            assert_eq!(backlog.append(Tape { has_gap: true, ..tape }).expect("a disk"), Admission::Begins);
            publish(&site, &backlog, true);
        };
        begin(tape(1, 40, 41, 500, vec![step(41, 500, "later")]));
        assert_eq!(site.bounds(), None, "one of them has not told");
        begin(tape(0, 7, 8, 600, Vec::new()));
        assert_eq!(site.bounds(), Some((UnixMillis(600), UnixMillis(600))));
        std::fs::remove_dir_all(&folder).expect("it is there");
    }
}
