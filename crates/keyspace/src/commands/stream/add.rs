//! XADD, XTRIM, XDEL and XSETID: what is in a stream.

use std::borrow::Cow;

use command::{Access, Flag, Refusal};
use resp::{Args, Writer};

use super::{ON_STREAM, strict_id, write_id};
use crate::collection::Limits;
use crate::collection::stream::block::BLOCK_BYTES_MAX;
use crate::collection::stream::{Head, Id, Keep, References, Stream, Wanted};
use crate::commands::arguments::{integer, is};
use crate::commands::string::first_key;
use crate::commands::{Body, DataCommand};
use crate::{Class, Edit};

pub(super) const XADD: DataCommand = DataCommand {
    name: "xadd",
    summary: "Adds an entry to a stream, and returns its id.",
    complexity: "O(1), and O(N) where N is the number of entries that are trimmed away.",
    syntax: "key [NOMKSTREAM] [KEEPREF | DELREF | ACKED] [IDMPAUTO pid | IDMP pid iid] [<MAXLEN | MINID> <[=] threshold | ~ threshold [LIMIT count]>] \
             <* | id> field value [field value ...]",
    arity: -5,
    flags: &[Flag::Write, Flag::Denyoom, Flag::Fast],
    keys: &[first_key(
        Access::ReadWrite,
        &["update", "UPDATE instead of INSERT because of the optional trimming feature"],
    )],
    tips: &["nondeterministic_output"],
    body: Body::Mutate(xadd),
    ..ON_STREAM
};

fn xadd(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let Options { wanted, only_existing, trimming, once, next } = Options::parse(args, true)?;
    let words = args.from(next + 1);
    if words.len() < 2 || words.len() % 2 == 1 {
        return Err(Refusal::wrong_arity("xadd"));
    }
    if wanted == Wanted::Exactly(Id::MIN) {
        return Err(Refusal::new("ERR The ID specified in XADD must be greater than 0-0"));
    }
    let key = args.at(1);
    if only_existing && edit.view().stream(key)?.is_none() {
        writer.null();
        return Ok(());
    }
    let bytes = words.byte_count() as u64;
    let now = edit.moment().unix.0.max(0) as u64;
    let once = once.map(|once| once.with_own_id(words.iter()));
    let added = edit.modify_stream(key, |stream| {
        if let Some((producer, own)) = &once
            && let Some(id) = stream.as_ref().idempotence().and_then(|memory| memory.find(producer, own, now))
        {
            stream.change().idempotence_mut().count_duplicate();
            return Ok(Err(id));
        }
        let id = stream.as_ref().next_id(wanted, now)?;
        if bytes > BLOCK_BYTES_MAX {
            return Err(Refusal::new("ERR Elements are too large to be stored"));
        }
        let limits = stream.limits();
        let stream = stream.change();
        stream.push(id, words.iter(), bytes, &limits);
        if let Some((producer, own)) = &once {
            stream.idempotence_mut().record(producer, own, id, now);
        }
        let trimmed = trimming.map(|trimming| trimming.apply(stream, &limits));
        Ok(Ok((id, trimmed)))
    })??;
    let (id, trimmed) = match added {
        Ok(added) => added,
        // The entry is there, or has been.
        Err(id) => {
            write_id(writer, id);
            return Ok(());
        }
    };
    write_id(writer, id);
    edit.notify(Class::Stream, "xadd", key);
    if let Some((count, part)) = trimmed {
        edit.free_stream_later(part);
        if count > 0 {
            edit.notify(Class::Stream, "xtrim", key);
        }
    }
    Ok(())
}

pub(super) const XTRIM: DataCommand = DataCommand {
    name: "xtrim",
    summary: "Removes the oldest entries of a stream.",
    complexity: "O(N) where N is the number of blocks and entries that are taken out.",
    syntax: "key <MAXLEN | MINID> <[=] threshold | ~ threshold [LIMIT count]> [KEEPREF | DELREF | ACKED]",
    arity: -4,
    flags: &[Flag::Write],
    keys: &[first_key(Access::ReadWrite, &["delete"])],
    tips: &["nondeterministic_output"],
    body: Body::Mutate(xtrim),
    ..ON_STREAM
};

fn xtrim(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let trimming = Options::parse(args, false)?.trimming.expect("asked for by the parser");
    let key = args.at(1);
    if edit.view().stream(key)?.is_none() {
        writer.integer(0);
        return Ok(());
    }
    let (count, part) = edit.modify_stream(key, |stream| {
        let limits = stream.limits();
        // Whether anything goes is known only when it has gone.
        let mut trimmed = stream.as_ref().clone();
        let (count, part) = trimming.apply(&mut trimmed, &limits);
        if count > 0 || !part.blocks().is_empty() {
            *stream.change() = trimmed;
        }
        (count, part)
    })?;
    edit.free_stream_later(part);
    if count > 0 {
        edit.notify(Class::Stream, "xtrim", key);
    }
    writer.integer(count as i64);
    Ok(())
}

/// An entry is added once, however often it is sent.
#[derive(Clone, Copy)]
struct Once<'a> {
    producer: &'a [u8],
    /// The producer's id of the entry. Made of what is in the entry if it gives none.
    own: Option<&'a [u8]>,
}

impl<'a> Once<'a> {
    /// Reads the words behind IDMP or IDMPAUTO, of which there are enough.
    fn parse(args: Args<'a>, index: usize) -> Result<Self, Refusal> {
        let is_auto = is(args.at(index), "idmpauto");
        let producer = args.at(index + 1);
        let own = (!is_auto).then(|| args.at(index + 2));
        let name = if is_auto { "IDMPAUTO" } else { "IDMP" };
        let lacks = |what: &str| Err(Refusal::new(format!("ERR syntax error, {name} requires a non-empty {what} ID")));
        match own {
            _ if producer.is_empty() => lacks("producer"),
            Some([]) => lacks("idempotent"),
            _ => Ok(Self { producer, own }),
        }
    }

    /// The producer, and its id of an entry with these fields and values.
    fn with_own_id(self, words: impl Iterator<Item = &'a [u8]>) -> (&'a [u8], Cow<'a, [u8]>) {
        let own = self.own.map_or_else(|| Cow::Owned(Stream::own_id_of(words).to_vec()), Cow::Borrowed);
        (self.producer, own)
    }
}

/// What XADD and XTRIM are told between the key and what follows.
struct Options<'a> {
    wanted: Wanted,
    only_existing: bool,
    trimming: Option<Trimming>,
    once: Option<Once<'a>>,
    /// The word at which they end: XADD's id.
    next: usize,
}

#[derive(Clone, Copy)]
struct Trimming {
    keep: Keep,
    only_blocks: bool,
    /// Zero is none.
    limit: Option<u64>,
    references: References,
}

/// What becomes of references, if the word says it.
pub(super) fn references_named(word: &[u8]) -> Option<References> {
    let named = [("keepref", References::Kept), ("delref", References::Dropped), ("acked", References::Heeded)];
    named.into_iter().find_map(|(name, references)| is(word, name).then_some(references))
}

impl Trimming {
    /// Trims a stream: how many entries have gone, and what was cut off.
    fn apply(self, stream: &mut Stream, limits: &Limits) -> (u64, Stream) {
        stream.trim(self.keep, self.only_blocks, self.limit(limits), self.references)
    }

    /// How many entries may go, if there is a limit to it.
    fn limit(self, limits: &Limits) -> Option<u64> {
        const BLOCKS: u64 = 100;
        let usual = || match limits.stream_block_entries.saturating_mul(BLOCKS) {
            0 => 10_000,
            entries => entries.min(1_000_000),
        };
        match self.limit {
            Some(limit) => Some(limit).filter(|&limit| limit > 0),
            None => self.only_blocks.then(usual),
        }
    }
}

impl<'a> Options<'a> {
    fn parse(args: Args<'a>, is_xadd: bool) -> Result<Self, Refusal> {
        let mut options =
            Self { wanted: Wanted::Any, only_existing: false, trimming: None, once: None, next: args.len() };
        let (mut keep, mut only_blocks, mut limit, mut references) = (None, false, None, None);
        let mut index = 2;
        while index < args.len() {
            let word = args.at(index);
            let is_last = index + 1 == args.len();
            if is_xadd && word == b"*" {
                break;
            } else if !is_last && (is(word, "maxlen") || is(word, "minid")) {
                if keep.is_some() {
                    return Err(Refusal::new(
                        "ERR syntax error, MAXLEN and MINID options at the same time are not compatible",
                    ));
                }
                only_blocks = false;
                if index + 2 < args.len() && matches!(args.at(index + 1), b"~" | b"=") {
                    only_blocks = args.at(index + 1) == b"~";
                    index += 1;
                }
                keep = Some(if is(word, "maxlen") {
                    let len = u64::try_from(integer(args.at(index + 1))?);
                    Keep::Newest(len.map_err(|_| Refusal::new("ERR The MAXLEN argument must be >= 0."))?)
                } else {
                    Keep::From(strict_id(args.at(index + 1), 0)?)
                });
                index += 1;
            } else if !is_last && is(word, "limit") {
                let number = u64::try_from(integer(args.at(index + 1))?);
                limit = Some(number.map_err(|_| Refusal::new("ERR The LIMIT argument must be >= 0."))?);
                index += 1;
            } else if is_xadd && is(word, "nomkstream") {
                options.only_existing = true;
            } else if let Some(said) = references_named(word).filter(|_| references.is_none()) {
                references = Some(said);
            } else if is_xadd && !is_last && (is(word, "idmpauto") || is(word, "idmp") && index + 2 < args.len()) {
                if options.once.is_some() {
                    return Err(Refusal::new("ERR syntax error, IDMP/IDMPAUTO specified multiple times"));
                }
                options.once = Some(Once::parse(args, index)?);
                index += if is(word, "idmp") { 2 } else { 1 };
            } else if is_xadd {
                options.wanted = match Id::parse_open(word) {
                    Some(ms) => Wanted::Within(ms),
                    None => Wanted::Exactly(strict_id(word, 0)?),
                };
                if options.once.is_some() {
                    return Err(Refusal::new(
                        "ERR syntax error, IDMP/IDMPAUTO can be used only with auto-generated IDs",
                    ));
                }
                break;
            } else {
                return Err(Refusal::SYNTAX);
            }
            index += 1;
        }
        options.next = index;
        let Some(keep) = keep else {
            return if limit.is_some_and(|limit| limit > 0) {
                Err(Refusal::new("ERR syntax error, LIMIT cannot be used without specifying a trimming strategy"))
            } else if !is_xadd {
                Err(Refusal::new("ERR syntax error, XTRIM must be called with a trimming strategy"))
            } else if limit.is_some() {
                Err(Refusal::LIMIT_WITHOUT_ABOUT)
            } else {
                Ok(options)
            };
        };
        if limit.is_some() && !only_blocks {
            return Err(Refusal::LIMIT_WITHOUT_ABOUT);
        }
        let references = references.unwrap_or_default();
        options.trimming = Some(Trimming { keep, only_blocks, limit, references });
        Ok(options)
    }
}

pub(super) const XDEL: DataCommand = DataCommand {
    name: "xdel",
    summary: "Deletes entries of a stream, and returns how many there were.",
    complexity: "O(N) where N is the number of ids.",
    syntax: "key id [id ...]",
    arity: -3,
    flags: &[Flag::Write, Flag::Fast],
    keys: &[first_key(Access::ReadWrite, &["delete"])],
    body: Body::Mutate(xdel),
    ..ON_STREAM
};

fn xdel(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let key = args.at(1);
    if edit.view().stream(key)?.is_none() {
        writer.integer(0);
        return Ok(());
    }
    let ids = args.iter().skip(2).map(|word| strict_id(word, 0)).collect::<Result<Vec<_>, _>>()?;
    let count = edit.modify_stream(key, |stream| {
        let mut count = 0;
        for id in ids {
            if stream.as_ref().get(id).is_some() {
                count += u64::from(stream.change().delete(id));
            }
        }
        count
    })?;
    if count > 0 {
        edit.notify(Class::Stream, "xdel", key);
    }
    writer.integer(count as i64);
    Ok(())
}

pub(super) const XSETID: DataCommand = DataCommand {
    name: "xsetid",
    summary: "Sets the last id of a stream.",
    complexity: "O(1)",
    syntax: "key last-id [ENTRIESADDED entries-added] [MAXDELETEDID max-deleted-id]",
    arity: -3,
    flags: &[Flag::Write, Flag::Denyoom, Flag::Fast],
    keys: &[first_key(Access::ReadWrite, &["update"])],
    body: Body::Mutate(xsetid),
    ..ON_STREAM
};

/// XSETID before it looked at what has been deleted.
pub(crate) const XSETID_OF_LEVEL_1: DataCommand =
    DataCommand { body: Body::Mutate(|edit, args, writer| xsetid_with(edit, args, writer, |_| Id::MIN)), ..XSETID };

fn xsetid(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    xsetid_with(edit, args, writer, |head| head.deleted_max)
}

/// The last id may not become less than `least` of what the stream remembers.
fn xsetid_with(
    edit: &mut Edit<'_>,
    args: Args<'_>,
    writer: &mut Writer,
    least: fn(&Head) -> Id,
) -> Result<(), Refusal> {
    let last = strict_id(args.at(2), 0)?;
    let (mut added, mut deleted_max) = (None, Id::MIN);
    for index in (3..args.len()).step_by(2) {
        let value = args.get(index + 1).ok_or(Refusal::SYNTAX)?;
        if is(args.at(index), "entriesadded") {
            let number = u64::try_from(integer(value)?);
            added = Some(number.map_err(|_| Refusal::new("ERR entries_added must be positive"))?);
        } else if is(args.at(index), "maxdeletedid") {
            deleted_max = strict_id(value, 0)?;
            if last < deleted_max {
                return Err(Refusal::new(
                    "ERR The ID specified in XSETID is smaller than the provided max_deleted_entry_id",
                ));
            }
        } else {
            return Err(Refusal::SYNTAX);
        }
    }
    let key = args.at(1);
    let stream = edit.view().stream(key)?.ok_or(Refusal::NO_SUCH_KEY)?;
    if last < least(&stream.head()) {
        return Err(Refusal::new("ERR The ID specified in XSETID is smaller than current max_deleted_entry_id"));
    }
    if stream.last_entry().is_some_and(|entry| last < entry) {
        return Err(Refusal::new("ERR The ID specified in XSETID is smaller than the target stream top item"));
    }
    if added.is_some_and(|added| stream.entry_count() > added) {
        return Err(Refusal::new("ERR The entries_added specified in XSETID is smaller than the target stream length"));
    }
    let old = stream.head();
    let new = Head {
        last,
        deleted_max: if deleted_max == Id::MIN { old.deleted_max } else { deleted_max },
        added: added.unwrap_or(old.added),
    };
    edit.modify_stream(key, |stream| stream.change().set_head(new))?;
    edit.notify(Class::Stream, "xsetid", key);
    writer.ok();
    Ok(())
}
