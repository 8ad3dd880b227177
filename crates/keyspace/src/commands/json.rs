//! Documents of JSON. What RedisJSON 2 answers, in both of its ways to say which values are meant: for a path that
//! begins with `$`, of all of them; for one of the older form, of one.
//!
//! A command first finds what it means, and refuses; then it changes the document, which cannot fail any more.

mod array;
mod get;
mod number;
mod object;
mod set;
mod text;

use std::borrow::Cow;
use std::cmp::Ordering;

use command::{Flag, Group, Refusal};
use resp::{Args, Protocol, Writer};

use super::key_specs::{CHANGED_KEY, READ_KEY};
use super::{BLANK, DataCommand, write_double};
use crate::json::limits::{DEPTH_MAX, DOCUMENT_BYTES_MAX};
use crate::json::parse::too_large;
use crate::json::path::Path;
use crate::json::{Json, Place, Step};
use crate::{Class, Edit, View};

/// Every command on documents.
pub(super) const COMMANDS: &[&DataCommand] = &[
    &set::SET,
    &set::MSET,
    &set::MERGE,
    &set::DEL,
    &set::FORGET,
    &set::CLEAR,
    &get::GET,
    &get::MGET,
    &get::TYPE,
    &get::RESP,
    &get::DEBUG,
    &number::NUMINCRBY,
    &number::NUMMULTBY,
    &number::TOGGLE,
    &text::STRAPPEND,
    &text::STRLEN,
    &array::ARRAPPEND,
    &array::ARRINDEX,
    &array::ARRINSERT,
    &array::ARRLEN,
    &array::ARRPOP,
    &array::ARRTRIM,
    &object::OBJKEYS,
    &object::OBJLEN,
];

/// What commands that read have in common.
const READING: DataCommand = DataCommand {
    since: "1.0.0",
    group: Group::Json,
    complexity: "O(N) where N is the number of values that the path looks at.",
    syntax: "key [path]",
    arity: -2,
    flags: &[Flag::Readonly],
    keys: READ_KEY,
    ..BLANK
};

/// What commands that change documents have in common.
const CHANGING: DataCommand = DataCommand { flags: &[Flag::Write], keys: CHANGED_KEY, ..READING };

/// Flags of commands that may need memory.
const GROWING: &[Flag] = &[Flag::Write, Flag::Denyoom];

fn no_document() -> Refusal {
    Refusal::new("ERR could not perform this operation on a key that doesn't exist")
}

fn no_path() -> Refusal {
    Refusal::new("ERR Path does not exist")
}

fn no_path_or(other: &str) -> Refusal {
    Refusal::new(format!("ERR Path does not exist or {other}"))
}

fn wrong_type(expected: &str) -> Refusal {
    Refusal::new(format!("WRONGTYPE wrong type of path value - expected {expected}"))
}

fn too_deep() -> Refusal {
    Refusal::new("ERR recursion limit exceeded")
}

/// The path that a word is, or the document in the older form if there is no word.
fn path_in(word: Option<&[u8]>) -> Result<Path, Refusal> {
    word.map_or_else(|| Ok(Path::legacy_root()), Path::read)
}

fn document<'a>(view: &View<'a>, key: &[u8]) -> Result<Cow<'a, Json>, Refusal> {
    view.json(key)?.ok_or_else(no_document)
}

/// Refuses what would not fit a document: `count` times `values` more, each under a place of this depth.
fn check_room(document: &Json, depth: usize, values: &[Json], count: usize) -> Result<(), Refusal> {
    if values.iter().any(|value| depth + value.depth() >= DEPTH_MAX) {
        return Err(too_deep());
    }
    let added = values.iter().map(Json::bytes).sum::<usize>().saturating_mul(count);
    if document.bytes().saturating_add(added) > DOCUMENT_BYTES_MAX { Err(too_large()) } else { Ok(()) }
}

/// Where the path leads, in the document's order; nothing in place of values that are not wanted. A path of the older
/// form must lead to some that are.
fn targets(
    document: &Json,
    path: &Path,
    wanted: fn(&Json) -> bool,
    otherwise: &str,
) -> Result<Vec<Option<Place>>, Refusal> {
    let found = path.find(document)?.into_iter();
    let targets: Vec<_> = found.map(|found| wanted(found.value).then_some(found.place)).collect();
    if path.is_legacy() && targets.iter().all(Option::is_none) {
        return Err(no_path_or(otherwise));
    }
    Ok(targets)
}

/// Whether a change may move what lies deeper in the value or behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    Keeps,
    Moves,
}

/// Changes one value after the other; if changes may move what is still to be changed, what lies deeper first, and of
/// an array what is further back. Answers in the order of the targets, with nothing for those that are none, and with
/// what the last change said, which is what a path of the older form gets.
fn change_each<R: Clone>(
    edit: &mut Edit<'_>,
    key: &[u8],
    targets: &[Option<Place>],
    effect: Effect,
    mut change: impl FnMut(&mut Json, &mut Vec<Json>) -> R,
) -> Result<(Vec<Option<R>>, Option<R>), Refusal> {
    let mut order: Vec<usize> = (0..targets.len()).filter(|&nth| targets[nth].is_some()).collect();
    if order.is_empty() {
        return Ok((vec![None; targets.len()], None));
    }
    if effect == Effect::Moves {
        order.sort_by(|&left, &right| order_of_change(&targets[left], &targets[right]));
    }
    edit.change_json(key, |document, removed| {
        let mut answers = vec![None; targets.len()];
        for &nth in &order {
            let place = targets[nth].as_deref().unwrap_or_default();
            answers[nth] = document.change_at(place, |value| change(value, removed));
        }
        let last = order.last().and_then(|&nth| answers[nth].clone());
        (answers, last)
    })
}

fn order_of_change(left: &Option<Place>, right: &Option<Place>) -> Ordering {
    let (left, right) = (left.as_deref().unwrap_or_default(), right.as_deref().unwrap_or_default());
    for (left, right) in left.iter().zip(right) {
        let order = match (left, right) {
            (Step::Index(left), Step::Index(right)) => right.cmp(left),
            (left, right) => left.cmp(right),
        };
        if order != Ordering::Equal {
            return order;
        }
    }
    right.len().cmp(&left.len())
}

/// Of places within each other the outermost, each once, in an order in which they can be removed.
fn outermost(mut places: Vec<Place>) -> Vec<Place> {
    places.sort();
    let mut kept: Vec<Place> = Vec::new();
    for place in places {
        if kept.last().is_none_or(|last| !place.starts_with(last)) {
            kept.push(place);
        }
    }
    kept.reverse();
    kept
}

/// The same, in the order in which RedisJSON removes them: of the names of an object those that are no numbers come
/// first, in their order, and then numbers from the highest on. That decides which name takes which place.
fn in_order_of_removal(mut places: Vec<Place>) -> Vec<Place> {
    let compare = |left: &Step, right: &Step| match (left, right) {
        (Step::Name(left), Step::Name(right)) => match (left.parse::<usize>(), right.parse::<usize>()) {
            (Ok(left), Ok(right)) => right.cmp(&left),
            (Ok(_), Err(_)) => Ordering::Greater,
            (Err(_), Ok(_)) => Ordering::Less,
            (Err(_), Err(_)) => left[..].cmp(&right[..]),
        },
        _ => right.cmp(left),
    };
    places.sort_by(|left, right| {
        let differ = left.iter().zip(right).map(|(left, right)| compare(left, right)).find(|order| order.is_ne());
        differ.unwrap_or(Ordering::Equal)
    });
    places
}

fn write_integers(writer: &mut Writer, numbers: &[Option<usize>]) {
    writer.array(numbers.len());
    for number in numbers {
        match number {
            Some(number) => writer.count(*number),
            None => writer.null(),
        }
    }
}

/// Answers lengths as the form of the path wants it.
fn write_lengths(writer: &mut Writer, path: &Path, each: &[Option<usize>], last: Option<usize>) {
    match last {
        Some(last) if path.is_legacy() => writer.count(last),
        _ => write_integers(writer, each),
    }
}

/// Changes values to which a path leads, answers with what each change says, and reports it if there was any.
fn change_lengths(
    edit: &mut Edit<'_>,
    args: Args<'_>,
    path: &Path,
    targets: &[Option<Place>],
    (effect, event): (Effect, &'static str),
    writer: &mut Writer,
    change: impl FnMut(&mut Json, &mut Vec<Json>) -> usize,
) -> Result<(), Refusal> {
    let (each, last) = change_each(edit, args.at(1), targets, effect, change)?;
    if last.is_some() {
        edit.notify(Class::Module, event, args.at(1));
    }
    write_lengths(writer, path, &each, last);
    Ok(())
}

fn is_resp3(writer: &Writer) -> bool {
    writer.protocol() == Protocol::Resp3
}
