//! XCFGSET and XIDMPRECORD: what a stream remembers of producers, so that what they send twice is added once.

use std::ops::RangeInclusive;

use command::{Access, Flag, Refusal};
use resp::{Args, Writer};

use super::{ON_STREAM, strict_id};
use crate::Edit;
use crate::collection::stream::idempotence::{DURATIONS_S, IDS_MAX_RANGE, Idempotence};
use crate::commands::arguments::{integer, is};
use crate::commands::string::first_key;
use crate::commands::{Body, DataCommand};

pub(super) const XCFGSET: DataCommand = DataCommand {
    name: "xcfgset",
    since: "8.6.0",
    summary: "Sets for how long a stream remembers the ids of producers, and how many of each.",
    complexity: "O(1), and O(N) where N is the number of producers if anything changes.",
    syntax: "key [IDMP-DURATION duration] [IDMP-MAXSIZE maxsize]",
    arity: -2,
    flags: &[Flag::Write, Flag::Denyoom, Flag::Fast],
    keys: &[first_key(Access::ReadWrite, &["update"])],
    body: Body::Mutate(xcfgset),
    ..ON_STREAM
};

/// Reads a number that is said once, and lies in its range.
fn read(
    said: &mut Option<u64>,
    word: &[u8],
    name: &str,
    range: RangeInclusive<u64>,
    unit: &str,
) -> Result<(), Refusal> {
    if said.is_some() {
        return Err(Refusal::new(format!("ERR {name} specified multiple times")));
    }
    let number = u64::try_from(integer(word)?).ok().filter(|number| range.contains(number));
    let (low, high) = range.into_inner();
    let out_of_range = || Refusal::new(format!("ERR {name} must be between {low} and {high} {unit}"));
    *said = Some(number.ok_or_else(out_of_range)?);
    Ok(())
}

fn xcfgset(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let key = args.at(1);
    let stream = edit.view().stream(key)?.ok_or(Refusal::NO_SUCH_KEY)?;
    let (mut duration_s, mut ids_max) = (None, None);
    for index in (2..args.len()).step_by(2) {
        let value = args.get(index + 1).ok_or(Refusal::SYNTAX)?;
        if is(args.at(index), "idmp-duration") {
            read(&mut duration_s, value, "IDMP-DURATION", DURATIONS_S, "seconds")?;
        } else if is(args.at(index), "idmp-maxsize") {
            read(&mut ids_max, value, "IDMP-MAXSIZE", IDS_MAX_RANGE, "entries")?;
        } else {
            return Err(Refusal::SYNTAX);
        }
    }
    if duration_s.is_none() && ids_max.is_none() {
        return Err(Refusal::new("ERR At least one parameter must be specified"));
    }
    let mut new = Idempotence::new();
    if let Some(old) = stream.idempotence() {
        (new.duration_s, new.ids_max) = (old.duration_s, old.ids_max);
        (new.added, new.duplicates) = (old.added, old.duplicates);
    }
    let before = (new.duration_s, new.ids_max);
    new.duration_s = duration_s.unwrap_or(new.duration_s);
    new.ids_max = ids_max.unwrap_or(new.ids_max);
    // A client that says the same again loses nothing: each producer may say it when it starts.
    if before != (new.duration_s, new.ids_max) {
        let part = edit.modify_stream(key, |stream| stream.change().set_idempotence(new))?;
        edit.free_stream_later(part);
    }
    writer.ok();
    Ok(())
}

pub(super) const XIDMPRECORD: DataCommand = DataCommand {
    name: "xidmprecord",
    since: "8.6.2",
    summary: "Makes a stream remember that a producer has added an entry under an id. For replicas and restored data.",
    complexity: "O(log N) where N is the number of producers and of their ids.",
    syntax: "key pid iid stream-id",
    arity: 5,
    flags: &[Flag::Write, Flag::Denyoom, Flag::Fast],
    keys: &[first_key(Access::ReadWrite, &["update"])],
    body: Body::Mutate(xidmprecord),
    ..ON_STREAM
};

fn xidmprecord(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let (key, producer, own, id) = (args.at(1), args.at(2), args.at(3), strict_id(args.at(4), 0)?);
    if producer.is_empty() {
        return Err(Refusal::new("ERR producer ID must be non-empty"));
    }
    if own.is_empty() {
        return Err(Refusal::new("ERR idempotent ID must be non-empty"));
    }
    let stream = edit.view().stream(key)?.ok_or(Refusal::NO_SUCH_KEY)?;
    if stream.get(id).is_none() {
        return Err(Refusal::new("ERR No such message in stream"));
    }
    let now = edit.moment().unix.0.max(0) as u64;
    match stream.idempotence().and_then(|memory| memory.find(producer, own, now)) {
        Some(known) if known != id => {
            return Err(Refusal::new("ERR IID already exists for this producer with a different stream ID"));
        }
        Some(_) => {}
        None => edit.modify_stream(key, |stream| {
            stream.change().idempotence_mut().record(producer, own, id, now);
        })?,
    }
    writer.ok();
    Ok(())
}
