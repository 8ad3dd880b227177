//! XREAD and XREADGROUP: what has been added since an id, or since a group has looked.

use command::{Access, Begin, Find, Flag, KeySpec, Refusal};
use resp::{Args, Protocol, Writer};
use stdx::Level;

use super::{ON_STREAM, strict_id, write_entries, write_entry, write_entry_parts, write_id};
use crate::collection::stream::block::Entry;
use crate::collection::stream::group::{Group, Pending};
use crate::collection::stream::{Direction, Id, Stream};
use crate::commands::arguments::{at_least, integer, is, parse_integer};
use crate::commands::{Body, DataCommand};
use crate::{Class, Edit, View};

/// Half of the words behind STREAMS are keys, the other half ids.
const fn keys_of_streams(from: i32) -> KeySpec {
    KeySpec {
        access: Access::Read,
        begin: Begin::Keyword("STREAMS", from),
        find: Find::Range { last: -1, step: 1, limit: 2 },
        notes: &["access"],
    }
}

pub(super) const XREAD: DataCommand = DataCommand {
    name: "xread",
    summary: "Returns the entries of several streams after an id.",
    complexity: "O(N) where N is the number of entries answered with.",
    syntax: "[COUNT count] [MAXCOUNT maxcount] [MAXSIZE maxsize] [BLOCK milliseconds] STREAMS key id",
    arity: -4,
    flags: &[Flag::Readonly, Flag::Blocking, Flag::MovableKeys],
    keys: &[keys_of_streams(1)],
    body: Body::Query(xread),
    ..ON_STREAM
};

fn xread(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let reading = Reading::parse(view, args)?;
    if !reading.answer(view, writer)? {
        writer.null_array();
    }
    Ok(())
}

pub(super) const XREADGROUP: DataCommand = DataCommand {
    name: "xreadgroup",
    summary: "Gives a consumer of a group new entries of several streams, or again those that it has not acknowledged.",
    complexity: "O(M) where M is the number of entries answered with, and O(log N) for each, where N is the number of those \
                 that are pending. With CLAIM, O(N) more.",
    syntax: "GROUP group consumer [COUNT count] [MAXCOUNT maxcount] [MAXSIZE maxsize] [BLOCK milliseconds] \
             [CLAIM min-idle-time] [NOACK] STREAMS key id",
    arity: -7,
    flags: &[Flag::Write, Flag::Blocking, Flag::MovableKeys],
    keys: &[keys_of_streams(4)],
    body: Body::Mutate(xreadgroup),
    ..ON_STREAM
};

fn xreadgroup(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let reading = Reading::parse(&edit.reading(), args)?;
    if !reading.give(edit, writer)? {
        writer.null_array();
    }
    Ok(())
}

/// What XREAD or XREADGROUP asks for.
pub(crate) struct Reading<'a> {
    streams: Vec<(&'a [u8], Since)>,
    /// Most entries of each stream.
    count: usize,
    /// Most entries of all streams together.
    count_max: usize,
    /// About how many bytes the answer may have.
    bytes_max: usize,
    /// For how many milliseconds to wait if there is nothing; 0 means without limit.
    pub(crate) wait_ms: Option<u64>,
    group: Option<AsConsumer<'a>>,
    /// Entries that have been pending for so many milliseconds are given out again.
    idle_ms_min: Option<i64>,
}

#[derive(Clone, Copy)]
struct AsConsumer<'a> {
    group: &'a [u8],
    consumer: &'a [u8],
    /// Entries count as acknowledged at once.
    is_acknowledged: bool,
}

/// From where a stream is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Since {
    /// Behind this id.
    After(Id),
    /// What the group has not given to anybody.
    New,
}

impl<'a> Reading<'a> {
    /// Reads the words, and looks up what `$` and `+` mean now.
    ///
    /// # Errors
    /// As Redis has them, key by key: the type, the group, the id.
    pub(crate) fn parse(view: &View<'_>, args: Args<'a>) -> Result<Self, Refusal> {
        let is_group = is(args.at(0), "xreadgroup");
        let mut reading = Self {
            streams: Vec::new(),
            count: usize::MAX,
            count_max: usize::MAX,
            bytes_max: usize::MAX,
            wait_ms: None,
            group: None,
            idle_ms_min: None,
        };
        let (mut group, mut is_acknowledged) = (None, false);
        let mut index = 1;
        let keys = loop {
            let Some(word) = args.get(index) else { return Err(Refusal::SYNTAX) };
            let rest = args.len() - index - 1;
            if is(word, "block") && rest > 0 {
                let number = args.at(index + 1);
                let number =
                    integer(number).map_err(|_| Refusal::new("ERR timeout is not an integer or out of range"))?;
                reading.wait_ms = Some(u64::try_from(number).map_err(|_| Refusal::new("ERR timeout is negative"))?);
                index += 2;
            } else if is(word, "count") && rest > 0 {
                // None and less than none are no limit.
                let count = usize::try_from(integer(args.at(index + 1))?).unwrap_or(0);
                reading.count = if count == 0 { usize::MAX } else { count };
                index += 2;
            } else if is(word, "maxcount") && rest > 0 {
                reading.count_max = at_least(1, args.at(index + 1), "ERR MAXCOUNT must be a positive integer")?;
                index += 2;
            } else if is(word, "maxsize") && rest > 0 {
                reading.bytes_max = at_least(1, args.at(index + 1), "ERR MAXSIZE must be a positive integer")?;
                index += 2;
            } else if is(word, "streams") && rest > 0 {
                break index + 1;
            } else if is(word, "group") && rest > 1 {
                if !is_group {
                    return Err(Refusal::new(
                        "ERR The GROUP option is only supported by XREADGROUP. You called XREAD instead.",
                    ));
                }
                group = Some((args.at(index + 1), args.at(index + 2)));
                index += 3;
            } else if is(word, "claim") && rest > 0 {
                if !is_group {
                    return Err(Refusal::new(
                        "ERR The CLAIM option is only supported by XREADGROUP. You called XREAD instead.",
                    ));
                }
                let number = parse_integer(args.at(index + 1));
                let number = number.ok_or_else(|| Refusal::new("ERR min-idle-time is not an integer"))?;
                if number < 0 {
                    return Err(Refusal::new("ERR min-idle-time must be a positive integer"));
                }
                reading.idle_ms_min = Some(number);
                index += 2;
            } else if is(word, "noack") {
                if !is_group {
                    return Err(Refusal::new(
                        "ERR The NOACK option is only supported by XREADGROUP. You called XREAD instead.",
                    ));
                }
                is_acknowledged = true;
                index += 1;
            } else {
                return Err(Refusal::SYNTAX);
            }
        };
        let words = args.len() - keys;
        if words % 2 == 1 {
            return Err(Refusal::new(
                "ERR Unbalanced XREAD list of streams: for each stream key an ID or '$' must be specified.",
            ));
        }
        if is_group && group.is_none() {
            return Err(Refusal::new("ERR Missing GROUP option for XREADGROUP"));
        }
        if reading.count != usize::MAX && reading.count > reading.count_max {
            return Err(Refusal::new("ERR MAXCOUNT must be greater than or equal to COUNT"));
        }
        reading.group = group.map(|(group, consumer)| AsConsumer { group, consumer, is_acknowledged });
        for index in keys..keys + words / 2 {
            let (key, id) = (args.at(index), args.at(index + words / 2));
            let since = reading.since(view, key, id)?;
            reading.streams.push((key, since));
        }
        Ok(reading)
    }

    fn room(&self) -> Room {
        Room { entries: self.count_max, bytes: self.bytes_max, is_empty: true, is_full: false }
    }

    fn since(&self, view: &View<'_>, key: &[u8], id: &[u8]) -> Result<Since, Refusal> {
        let stream = view.stream(key)?;
        if let Some(as_consumer) = self.group
            && stream.is_none_or(|stream| stream.group(as_consumer.group).is_none())
        {
            let (key, group) = (String::from_utf8_lossy(key), String::from_utf8_lossy(as_consumer.group));
            return Err(Refusal::new(format!(
                "NOGROUP No such key '{key}' or consumer group '{group}' in XREADGROUP with GROUP option"
            )));
        }
        match (id, self.group) {
            (b"$", None) => Ok(Since::After(stream.map_or(Id::MIN, |stream| stream.head().last))),
            (b"$", Some(_)) => Err(Refusal::new(
                "ERR The $ ID is meaningless in the context of XREADGROUP: you want to read the history of this consumer \
                 by specifying a proper ID, or use the > ID to get new messages. The $ ID would just return an empty \
                 result set.",
            )),
            // What lies before the last entry, if there is one, so that it alone is answered with.
            (b"+", None) => {
                let last = stream.and_then(|stream| stream.last_entry());
                Ok(Since::After(last.and_then(Id::previous).unwrap_or(Id::MIN)))
            }
            (b"+", Some(_)) => Err(Refusal::new(
                "ERR The + ID is meaningless in the context of XREADGROUP: you want to read the history of this consumer \
                 by specifying a proper ID, or use the > ID to get new messages. The + ID would just return an empty \
                 result set.",
            )),
            (b">", Some(_)) => Ok(Since::New),
            (b">", None) => Err(Refusal::new(
                "ERR The > ID can be specified only when calling XREADGROUP using the GROUP <group> <consumer> option.",
            )),
            // The highest id is another way to say that.
            (id, Some(_)) => strict_id(id, 0).map(|id| if id == Id::MAX { Since::New } else { Since::After(id) }),
            (id, None) => strict_id(id, 0).map(Since::After),
        }
    }

    /// Answers XREAD, if there is anything.
    pub(crate) fn answer(&self, view: &View<'_>, writer: &mut Writer) -> Result<bool, Refusal> {
        let mut found = Vec::with_capacity(self.streams.len());
        let mut room = self.room();
        for &(key, since) in &self.streams {
            let Since::After(id) = since else { continue };
            if let (Some(stream), Some(start)) = (view.stream(key)?, id.next())
                && stream.last_entry().is_some_and(|last| last > id)
            {
                let count = room.for_entries(stream, start, self.count);
                if count > 0 {
                    found.push((key, stream, start, count));
                }
            }
        }
        if !found.is_empty() {
            write_streams(writer, found.len());
            for (key, stream, start, count) in &found {
                write_key(writer, key);
                write_entries(writer, stream, (*start, Id::MAX), Direction::Up, *count);
            }
        }
        Ok(!found.is_empty())
    }

    /// Answers XREADGROUP, if there is anything, and notes what the consumer was given.
    pub(crate) fn give(&self, edit: &mut Edit<'_>, writer: &mut Writer) -> Result<bool, Refusal> {
        let Some(as_consumer) = self.group else { return Ok(false) };
        // A key may stand twice: what the first got, the second does not. So only the end tells how many there are.
        let mut answers = Writer::new(writer.protocol());
        let mut count = 0;
        let mut room = self.room();
        for &(key, since) in &self.streams {
            let (now, level) = (edit.moment().unix.0, edit.view().level());
            let (is_served, is_new) = edit.modify_stream(key, |stream| {
                let group = stream.as_ref().group(as_consumer.group);
                let Some(group) = group else { return (false, false) };
                if room.is_full {
                    return (false, false);
                }
                let mut idle = match (since, self.idle_ms_min) {
                    (Since::New, Some(idle_ms_min)) => idle_entries(stream.as_ref(), group, idle_ms_min, now),
                    _ => Vec::new(),
                };
                idle.truncate(self.count);
                let has_new = stream.as_ref().last_entry().is_some_and(|entry| entry > group.last);
                if since == Since::New && !has_new && idle.is_empty() {
                    // A consumer that has asked is known from then on; one that waits, when there is something: a
                    // request that changed the stream before it waits could be overtaken by another that was sent
                    // behind it.
                    let is_new = self.wait_ms.is_none()
                        && group.consumer(as_consumer.consumer).is_none()
                        && stream.change().hear_of(as_consumer.group, as_consumer.consumer, now);
                    return (false, is_new);
                }
                let most = match since {
                    Since::New => {
                        idle.truncate(room.for_pending(stream.as_ref(), idle.iter(), self.count));
                        let start = group.last.next().filter(|_| has_new);
                        let most = self.count - idle.len();
                        idle.len() + start.map_or(0, |start| room.for_entries(stream.as_ref(), start, most))
                    }
                    Since::After(after) => {
                        room.for_pending(stream.as_ref(), history(group, as_consumer, after), self.count)
                    }
                };
                if room.is_full && most == 0 {
                    return (false, false);
                }
                write_key(&mut answers, key);
                let stream = stream.change();
                let is_new = stream.hear_of(as_consumer.group, as_consumer.consumer, now);
                match since {
                    Since::New => {
                        let shows_pending = self.idle_ms_min.is_some();
                        let giving = Giving { count: most, shows_pending, now, level };
                        give_new(stream, as_consumer, &idle, giving, &mut answers);
                    }
                    Since::After(id) => give_again(stream, as_consumer, id, most, now, &mut answers),
                }
                (true, is_new)
            })?;
            count += usize::from(is_served);
            if is_new {
                edit.notify(Class::Stream, "xgroup-createconsumer", key);
            }
        }
        if count > 0 {
            write_streams(writer, count);
            writer.raw(answers.bytes());
        }
        Ok(count > 0)
    }
}

/// What an answer still has room for, over all of its streams.
struct Room {
    entries: usize,
    bytes: usize,
    /// True as long as there is nothing in it: the first entry has room, however large it is.
    is_empty: bool,
    /// True once something had no room. What comes later has none either, though it may be smaller.
    is_full: bool,
}

impl Room {
    /// True if nothing is limited.
    fn is_endless(&self) -> bool {
        self.entries == usize::MAX && self.bytes == usize::MAX
    }

    /// Takes the room of an entry of so many bytes, which are asked for only if they are limited. False if there is
    /// none.
    fn take(&mut self, bytes: impl FnOnce() -> usize) -> bool {
        let bytes = if self.bytes == usize::MAX { 0 } else { bytes() };
        let fits = !self.is_full && self.entries > 0 && (self.is_empty || bytes <= self.bytes);
        if fits {
            self.is_empty = false;
            self.entries -= 1;
            self.bytes = self.bytes.saturating_sub(bytes);
        } else {
            self.is_full = true;
        }
        fits
    }

    /// How many entries from `start` on have room, of `most`; it is taken.
    fn for_entries(&mut self, stream: &Stream, start: Id, most: usize) -> usize {
        /// So many entries are looked at in one go. Of a long stream, few may have room.
        const STEP: usize = 64;
        if self.is_endless() {
            return most;
        }
        let (mut count, mut next) = (0, Some(start));
        while let Some(start) = next.take()
            && count < most
            && !self.is_full
        {
            let mut seen = 0;
            stream.visit(start, Id::MAX, Direction::Up, STEP.min(most - count), |entry| {
                count += usize::from(self.take(|| bytes_of(&entry)));
                seen += 1;
                next = entry.id.next();
            });
            if seen < STEP {
                next = None;
            }
        }
        count
    }

    /// How many of these pending entries have room, of `most`; it is taken.
    fn for_pending<'p>(&mut self, stream: &Stream, pending: impl Iterator<Item = &'p Pending>, most: usize) -> usize {
        if self.is_endless() {
            return most;
        }
        let size = |id: Id| stream.get(id).map_or(id.text().as_bytes().len(), |entry| bytes_of(&entry));
        pending.take(most).take_while(|pending| self.take(|| size(pending.id))).count()
    }
}

/// The size of an entry in an answer. It is that of RESP2 for every client: what a group gives out must be the same on
/// every replica, and they do not all know who asks.
fn bytes_of(entry: &Entry<'_>) -> usize {
    let mut writer = Writer::new(Protocol::Resp2);
    write_entry(&mut writer, entry);
    writer.len()
}

/// What a consumer was given behind an id, and has not acknowledged.
fn history<'g>(group: &'g Group, to: AsConsumer<'_>, after: Id) -> impl Iterator<Item = &'g Pending> {
    let from = group.consumer(to.consumer).zip(after.next());
    from.into_iter().flat_map(|(consumer, start)| group.pending_range(start, Id::MAX, Some(consumer)))
}

/// What a group has given out, so many milliseconds ago at least, and what is still there of it: what was released
/// first, then the longest idle.
fn idle_entries(stream: &Stream, group: &Group, idle_ms_min: i64, now: i64) -> Vec<Pending> {
    let is_idle = |pending: &&Pending| now.saturating_sub(pending.time()) >= idle_ms_min;
    let all = group.pending_range(Id::MIN, Id::MAX, None).filter(is_idle);
    let mut idle: Vec<_> = all.filter(|pending| stream.get(pending.id).is_some()).cloned().collect();
    idle.sort_by_key(Pending::turn);
    idle
}

/// Writes an entry, and if that is asked for, how long ago it was given out, and how often.
fn write_given(writer: &mut Writer, entry: &Entry<'_>, pending: Option<(i64, i64)>) {
    let Some((idle_ms, count)) = pending else { return write_entry(writer, entry) };
    writer.array(4);
    write_entry_parts(writer, entry);
    writer.integer(idle_ms);
    writer.integer(count);
}

/// How entries are given out.
#[derive(Clone, Copy)]
struct Giving {
    /// So many at most.
    count: usize,
    /// With how long ago each was given out, and how often.
    shows_pending: bool,
    now: i64,
    /// Of the group that logs the request.
    level: Level,
}

/// Idle entries, which then belong to this consumer, and what nobody has been given yet.
fn give_new(stream: &mut Stream, to: AsConsumer<'_>, idle: &[Pending], giving: Giving, writer: &mut Writer) {
    let Giving { count, shows_pending, now, level } = giving;
    let Some(group) = stream.group(to.group) else { return };
    let (mut last, mut read) = (group.last, group.read);
    let start = last.next();
    let found = start.map_or(0, |start| stream.count(start, Id::MAX, count - idle.len()));
    let mut ids = Vec::with_capacity(if to.is_acknowledged { 0 } else { found });
    writer.array(idle.len() + found);
    for pending in idle {
        let entry = stream.get(pending.id).expect("it was there");
        write_given(writer, &entry, Some((now.saturating_sub(pending.time()), pending.shown_count())));
    }
    if let Some(start) = start {
        stream.visit(start, Id::MAX, Direction::Up, found, |entry| {
            write_given(writer, &entry, shows_pending.then_some((0, 0)));
            read = stream.read_after(read, last, entry.id, level);
            last = entry.id;
            if !to.is_acknowledged {
                ids.push(entry.id);
            }
        });
    }
    stream.change_group(to.group, |group| {
        (group.last, group.read) = (last, read);
        group.set_active(to.consumer, Some(now));
        for pending in idle {
            group.assign(pending.id, to.consumer, now, pending.count.saturating_add(1));
        }
        // XGROUP SETID may have gone back: then some are pending, perhaps for others.
        ids.iter().for_each(|&id| group.assign(id, to.consumer, now, 1));
    });
}

/// What the consumer was given behind an id and has not acknowledged. Of what has been deleted, only the id is left.
fn give_again(stream: &mut Stream, to: AsConsumer<'_>, after: Id, count: usize, now: i64, writer: &mut Writer) {
    let Some(group) = stream.group(to.group) else { return };
    let ids: Vec<Id> = history(group, to, after).take(count).map(|pending| pending.id).collect();
    let mut given = Vec::with_capacity(ids.len());
    writer.array(ids.len());
    for id in ids {
        match stream.get(id) {
            Some(entry) => {
                write_entry(writer, &entry);
                given.push(id);
            }
            None => {
                writer.array(2);
                write_id(writer, id);
                writer.null_array();
            }
        }
    }
    stream.change_group(to.group, |group| {
        if !given.is_empty() {
            group.set_active(to.consumer, Some(now));
        }
        given.iter().for_each(|&id| group.give_again(id, now));
    });
}

fn write_streams(writer: &mut Writer, count: usize) {
    match writer.protocol() {
        Protocol::Resp2 => writer.array(count),
        Protocol::Resp3 => writer.map(count),
    }
}

fn write_key(writer: &mut Writer, key: &[u8]) {
    if writer.protocol() == Protocol::Resp2 {
        writer.array(2);
    }
    writer.bulk(key);
}
