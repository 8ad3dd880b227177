//! XDELEX and XACKDEL: entries deleted with regard to the groups that refer to them.

use command::{Access, Flag, Refusal};
use resp::{Args, Writer};

use super::add::references_named;
use super::{ON_STREAM, strict_id};
use crate::collection::stream::group::Group;
use crate::collection::stream::{Id, References, StreamMut};
use crate::commands::arguments::{is, parse_integer};
use crate::commands::string::first_key;
use crate::commands::{Body, DataCommand};
use crate::{Class, Edit};

pub(super) const XDELEX: DataCommand = DataCommand {
    name: "xdelex",
    since: "8.2.0",
    summary: "Deletes entries of a stream and their pending entries, or only those that all groups have acknowledged.",
    complexity: "O(N*M) where N is the number of ids, and M that of groups.",
    syntax: "key [KEEPREF | DELREF | ACKED] IDS numids id [id ...]",
    arity: -5,
    flags: &[Flag::Write, Flag::Fast],
    keys: &[first_key(Access::ReadWrite, &["delete"])],
    body: Body::Mutate(xdelex),
    ..ON_STREAM
};

pub(super) const XACKDEL: DataCommand = DataCommand {
    name: "xackdel",
    since: "8.2.0",
    summary: "Acknowledges entries in a group and deletes them as XDELEX does.",
    complexity: "O(N*M) where N is the number of ids, and M that of groups.",
    syntax: "key group [KEEPREF | DELREF | ACKED] IDS numids id [id ...]",
    arity: -6,
    flags: &[Flag::Write, Flag::Fast],
    keys: &[first_key(Access::ReadWrite, &["delete", "update"])],
    body: Body::Mutate(xackdel),
    ..ON_STREAM
};

/// There is no such entry, or it is not pending.
const UNKNOWN: i64 = -1;
/// The entry has been deleted.
const DELETED: i64 = 1;
/// A group still refers to the entry.
const REFERENCED: i64 = 2;

/// What is asked for.
struct Request<'a> {
    references: References,
    /// The ids, not yet read.
    words: Vec<&'a [u8]>,
}

impl Request<'_> {
    fn ids(&self) -> Result<Vec<Id>, Refusal> {
        self.words.iter().map(|word| strict_id(word, 0)).collect()
    }
}

/// The words from `first` on: in any order what becomes of references, once, and the ids.
fn parse(args: Args<'_>, first: usize) -> Result<Request<'_>, Refusal> {
    let (mut references, mut ids) = (None, None);
    let mut next = first;
    while let Some(word) = args.get(next) {
        if let Some(said) = references_named(word).filter(|_| references.is_none()) {
            references = Some(said);
            next += 1;
        } else if let Some(number) = args.get(next + 1).filter(|_| is(word, "ids")) {
            let count = parse_integer(number).and_then(|count| usize::try_from(count).ok()).filter(|&count| count > 0);
            let count = count.ok_or_else(|| Refusal::new("ERR Number of IDs must be a positive integer"))?;
            if count > args.len() - next - 2 {
                return Err(Refusal::new("ERR The `numids` parameter must match the number of arguments"));
            }
            ids = Some((next + 2, count));
            next += 2 + count;
        } else {
            return Err(Refusal::SYNTAX);
        }
    }
    let (from, count) = ids.ok_or_else(|| Refusal::new("ERR IDS option is required"))?;
    let words = args.iter().skip(from).take(count).collect();
    Ok(Request { references: references.unwrap_or_default(), words })
}

/// Deletes an entry, unless there are references to it that must be respected.
fn delete(stream: &mut StreamMut<'_, '_>, id: Id, references: References) -> i64 {
    match references {
        References::Heeded if stream.as_ref().is_referenced(id) => return REFERENCED,
        References::Dropped if stream.as_ref().is_pending(id) => stream.change().drop_references(&[id]),
        _ => {}
    }
    if stream.as_ref().get(id).is_some() && stream.change().delete(id) { DELETED } else { UNKNOWN }
}

/// Answers with what became of each id, and reports if entries have been deleted.
fn answer(edit: &mut Edit<'_>, key: &[u8], outcomes: &[i64], deletes: bool, writer: &mut Writer) {
    if deletes {
        edit.notify(Class::Stream, "xdel", key);
    }
    writer.array(outcomes.len());
    outcomes.iter().for_each(|&outcome| writer.integer(outcome));
}

fn xdelex(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let request = parse(args, 2)?;
    let key = args.at(1);
    let exists = edit.reading().stream(key)?.is_some();
    // As in Redis nobody looks at the ids if there is nothing to find them in.
    let ids = if exists { request.ids()? } else { Vec::new() };
    let mut outcomes = vec![UNKNOWN; request.words.len()];
    if exists {
        edit.modify_stream(key, |stream| {
            outcomes.iter_mut().zip(&ids).for_each(|(outcome, &id)| *outcome = delete(stream, id, request.references));
        })?;
    }
    answer(edit, key, &outcomes, outcomes.contains(&DELETED), writer);
    Ok(())
}

fn xackdel(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let request = parse(args, 3)?;
    let (key, name) = (args.at(1), args.at(2));
    let exists = edit.reading().stream(key)?.is_some_and(|stream| stream.group(name).is_some());
    // As in Redis nobody looks at the ids if there is nothing to find them in.
    let ids = if exists { request.ids()? } else { Vec::new() };
    let mut outcomes = vec![UNKNOWN; request.words.len()];
    let mut deletes = false;
    if exists {
        edit.modify_stream(key, |stream| {
            for (outcome, &id) in outcomes.iter_mut().zip(&ids) {
                let is_pending = |group: &Group| group.pending(id).is_some();
                if !stream.as_ref().group(name).is_some_and(is_pending) {
                    continue;
                }
                stream.change().change_group(name, |group| group.acknowledge(id));
                let found = delete(stream, id, request.references);
                deletes |= found == DELETED;
                // What was pending and is no longer in the stream counts as deleted.
                *outcome = if found == REFERENCED { REFERENCED } else { DELETED };
            }
        })?;
    }
    answer(edit, key, &outcomes, deletes, writer);
    Ok(())
}
