//! XCLAIM and XAUTOCLAIM: pending entries go over to another consumer.

use command::{Access, Flag, Refusal};
use resp::{Args, Writer};

use super::{ON_STREAM, no_group, start_id, strict_id, write_entry, write_id};
use crate::collection::stream::group::{Group, Pending};
use crate::collection::stream::{Id, Stream, StreamMut};
use crate::commands::arguments::{integer, is};
use crate::commands::string::first_key;
use crate::commands::{Body, DataCommand};
use crate::{Class, Edit};

pub(super) const XCLAIM: DataCommand = DataCommand {
    name: "xclaim",
    summary: "Gives pending entries to another consumer of the group.",
    complexity: "O(log N) for each id, where N is the number of pending entries.",
    syntax: "key group consumer min-idle-time id [id ...] [IDLE ms] [TIME unix-time-milliseconds] [RETRYCOUNT count] \
             [FORCE] [JUSTID] [LASTID lastid]",
    arity: -6,
    flags: &[Flag::Write, Flag::Fast],
    keys: &[first_key(Access::ReadWrite, &["update"])],
    tips: &["nondeterministic_output"],
    body: Body::Mutate(xclaim),
    ..ON_STREAM
};

/// How entries are claimed.
#[derive(Default)]
struct Claim<'a> {
    group: &'a [u8],
    consumer: &'a [u8],
    /// Those that were given out later than this are left alone.
    idle_ms_min: i64,
    now: i64,
    /// When they are said to have been given out.
    time: i64,
    /// How often they are said to have been.
    count: Option<u64>,
    /// Entries that are not pending become so.
    is_forced: bool,
    /// Only ids are answered with, and the claim does not count as giving them out.
    only_ids: bool,
}

fn xclaim(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let (key, name) = (args.at(1), args.at(2));
    if edit.reading().stream(key)?.is_none_or(|stream| stream.group(name).is_none()) {
        return Err(no_group(key, name));
    }
    let now = edit.moment().unix.0;
    let mut claim = Claim { group: name, consumer: args.at(3), now, time: now, ..Claim::default() };
    claim.idle_ms_min = idle_time(args.at(4), "XCLAIM")?;
    let ids: Vec<Id> = args.iter().skip(5).map_while(|word| Id::parse(word, 0)).collect();
    let last = claim.parse_options(args, 5 + ids.len())?;
    let (claimed, is_new) = edit.modify_stream(key, |stream| {
        let mut is_new = claim.meets(stream);
        let raises = stream.as_ref().group(name).is_some_and(|group| last > group.last);
        if raises {
            stream.change().change_group(name, |group| group.last = last);
        }
        let mut claimed = Vec::new();
        for id in ids {
            let pending = stream.as_ref().group(name).and_then(|group| group.pending(id)).cloned();
            if stream.as_ref().get(id).is_none() {
                if pending.is_some() {
                    stream.change().change_group(name, |group| group.acknowledge(id));
                }
            } else if claim.takes(pending.as_ref()) {
                is_new |= claim.take(stream.change(), id, pending.as_ref());
                claimed.push(id);
            }
        }
        (claimed, is_new)
    })?;
    if is_new {
        edit.notify(Class::Stream, "xgroup-createconsumer", key);
    }
    // They may have been idle for long by now, or be pending for the first time: who waits to claim looks again.
    if !claimed.is_empty() && (claim.time < now || claim.is_forced) {
        edit.wake_waiters(key);
    }
    let stream = edit.view().stream(key)?.expect("just seen");
    claim.write(stream, &claimed, writer);
    Ok(())
}

impl Claim<'_> {
    /// Reads the options of XCLAIM; the last id that the group will have.
    fn parse_options(&mut self, args: Args<'_>, from: usize) -> Result<Id, Refusal> {
        let (mut index, mut last, mut time) = (from, Id::MIN, None);
        while index < args.len() {
            let word = args.at(index);
            let value = args.get(index + 1);
            let number = |value: &[u8], name: &str| {
                integer(value).map_err(|_| Refusal::new(format!("ERR Invalid {name} option argument for XCLAIM")))
            };
            let width = match value {
                _ if is(word, "force") => {
                    self.is_forced = true;
                    1
                }
                _ if is(word, "justid") => {
                    self.only_ids = true;
                    1
                }
                Some(value) if is(word, "idle") => {
                    time = Some(self.now.wrapping_sub(number(value, "IDLE")?));
                    2
                }
                Some(value) if is(word, "time") => {
                    time = Some(number(value, "TIME")?);
                    2
                }
                Some(value) if is(word, "retrycount") => {
                    self.count = u64::try_from(number(value, "RETRYCOUNT")?).ok();
                    2
                }
                Some(value) if is(word, "lastid") => {
                    last = strict_id(value, 0)?;
                    2
                }
                _ => {
                    let word = String::from_utf8_lossy(word);
                    return Err(Refusal::new(format!("ERR Unrecognized XCLAIM option '{word}'")));
                }
            };
            index += width;
        }
        // A time that cannot be is now: clients reckon it by clocks of their own.
        self.time = time.filter(|time| (0..=self.now).contains(time)).unwrap_or(self.now);
        Ok(last)
    }

    /// Makes the consumer, if there is none of this name, whether it gets anything or not. True if it did.
    fn meets(&self, stream: &mut StreamMut<'_, '_>) -> bool {
        let is_known = |group: &Group| group.consumer(self.consumer).is_some();
        !stream.as_ref().group(self.group).is_some_and(is_known)
            && stream.change().hear_of(self.group, self.consumer, self.now)
    }

    /// True if an entry that exists can be claimed.
    fn takes(&self, pending: Option<&Pending>) -> bool {
        match pending {
            None => self.is_forced,
            Some(pending) => pending.is_idle(self.idle_ms_min, self.now),
        }
    }

    /// Gives an entry to the consumer. True if there was no such consumer before.
    fn take(&self, stream: &mut Stream, id: Id, pending: Option<&Pending>) -> bool {
        let before = pending.map_or(1, |pending| pending.count);
        let count = self.count.unwrap_or(if self.only_ids { before } else { before.saturating_add(1) });
        let is_new = stream.change_group(self.group, |group| {
            let is_new = group.hear_of(self.consumer, self.now);
            group.set_active(self.consumer, Some(self.now));
            group.assign(id, self.consumer, self.time, count);
            is_new
        });
        is_new == Some(true)
    }

    fn write(&self, stream: &Stream, claimed: &[Id], writer: &mut Writer) {
        writer.array(claimed.len());
        for &id in claimed {
            match stream.get(id) {
                Some(entry) if !self.only_ids => write_entry(writer, &entry),
                _ => write_id(writer, id),
            }
        }
    }
}

fn idle_time(word: &[u8], command: &str) -> Result<i64, Refusal> {
    match integer(word) {
        Ok(number) => Ok(number.max(0)),
        Err(_) => Err(Refusal::new(format!("ERR Invalid min-idle-time argument for {command}"))),
    }
}

pub(super) const XAUTOCLAIM: DataCommand = DataCommand {
    name: "xautoclaim",
    since: "6.2.0",
    summary: "Gives another consumer the pending entries that nobody has acknowledged for a while.",
    complexity: "O(N) where N is the number of pending entries that are looked at, at most ten times COUNT.",
    syntax: "key group consumer min-idle-time start [COUNT count] [JUSTID]",
    arity: -6,
    flags: &[Flag::Write, Flag::Fast],
    keys: &[first_key(Access::ReadWrite, &["delete"])],
    tips: &["nondeterministic_output"],
    body: Body::Mutate(xautoclaim),
    ..ON_STREAM
};

/// XAUTOCLAIM looks at so many entries for each that it may claim.
const LOOKS_PER_CLAIM: usize = 10;

fn xautoclaim(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    /// What is an entry's id in Redis, in bytes: more would not fit its memory.
    const ID_BYTES: i64 = 16;
    let idle_ms_min = idle_time(args.at(4), "XAUTOCLAIM")?;
    let start = start_id(args.at(5))?;
    let (mut count, mut only_ids) = (100, false);
    let mut index = 6;
    while index < args.len() {
        match args.get(index + 1) {
            Some(number) if is(args.at(index), "count") => {
                let number = integer(number).ok().filter(|number| (1..=i64::MAX / ID_BYTES).contains(number));
                count = number.ok_or(Refusal::new("ERR COUNT must be > 0"))? as usize;
                index += 2;
            }
            _ if is(args.at(index), "justid") => {
                only_ids = true;
                index += 1;
            }
            _ => return Err(Refusal::SYNTAX),
        }
    }
    let (key, name) = (args.at(1), args.at(2));
    if edit.reading().stream(key)?.is_none_or(|stream| stream.group(name).is_none()) {
        return Err(no_group(key, name));
    }
    let now = edit.moment().unix.0;
    let claim = Claim { group: name, consumer: args.at(3), idle_ms_min, now, time: now, only_ids, ..Claim::default() };
    let mut sweep = Sweep::default();
    let is_new = edit.modify_stream(key, |stream| {
        let mut is_new = claim.meets(stream);
        sweep.find(stream.as_ref(), &claim, start, count);
        if !sweep.claimed.is_empty() || !sweep.gone.is_empty() {
            let stream = stream.change();
            for pending in &sweep.claimed {
                is_new |= claim.take(stream, pending.id, Some(pending));
            }
            stream.change_group(name, |group| sweep.gone.iter().for_each(|&id| _ = group.acknowledge(id)));
        }
        is_new
    })?;
    if is_new {
        edit.notify(Class::Stream, "xgroup-createconsumer", key);
    }
    writer.array(3);
    write_id(writer, sweep.next);
    let stream = edit.view().stream(key)?.expect("just seen");
    let claimed: Vec<Id> = sweep.claimed.iter().map(|pending| pending.id).collect();
    claim.write(stream, &claimed, writer);
    writer.array(sweep.gone.len());
    sweep.gone.iter().for_each(|&id| write_id(writer, id));
    Ok(())
}

/// What XAUTOCLAIM has found.
#[derive(Default)]
struct Sweep {
    claimed: Vec<Pending>,
    /// Pending, but no longer in the stream.
    gone: Vec<Id>,
    /// Where to go on; [`Id::MIN`] at the end.
    next: Id,
}

impl Sweep {
    fn find(&mut self, stream: &Stream, claim: &Claim<'_>, start: Id, count: usize) {
        let Some(group) = stream.group(claim.group) else { return };
        let mut looks = count.saturating_mul(LOOKS_PER_CLAIM);
        for pending in group.pending_range(start, Id::MAX, None) {
            if looks == 0 || self.claimed.len() + self.gone.len() == count {
                self.next = pending.id;
                return;
            }
            looks -= 1;
            if stream.get(pending.id).is_none() {
                self.gone.push(pending.id);
            } else if claim.takes(Some(pending)) {
                self.claimed.push(pending.clone());
            }
        }
    }
}
