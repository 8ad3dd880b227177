//! Arrays.

use command::Refusal;
use resp::{Args, Writer};

use super::get::Expansion;
use super::{
    CHANGING, Effect, GROWING, READING, change_each, change_lengths, check_room, is_resp3, no_document, no_path,
    no_path_or, path_in, targets, write_integers, wrong_type,
};
use crate::commands::arguments::{integer, is};
use crate::commands::{Body, DataCommand};
use crate::json::path::Path;
use crate::json::{Json, Place, parse::parse};
use crate::{Class, Edit, View};

pub(super) const ARRAPPEND: DataCommand = DataCommand {
    name: "json.arrappend",
    summary: "Appends values to arrays.",
    syntax: "key path value [value ...]",
    arity: -4,
    flags: GROWING,
    body: Body::Mutate(append),
    ..CHANGING
};

pub(super) const ARRINSERT: DataCommand = DataCommand {
    name: "json.arrinsert",
    summary: "Inserts values into arrays.",
    complexity: "O(M+N) where M is the number of values that the path looks at, and N the length of the arrays.",
    syntax: "key path index value [value ...]",
    arity: -5,
    body: Body::Mutate(insert),
    ..ARRAPPEND
};

pub(super) const ARRPOP: DataCommand = DataCommand {
    name: "json.arrpop",
    summary: "Removes and returns values of arrays: the last ones, or those at an index.",
    complexity: "O(M+N) where M is the number of values that the path looks at, and N how many lie behind those taken.",
    syntax: "key [FORMAT <STRINGS | EXPAND1 | EXPAND>] [path [index]]",
    body: Body::Mutate(pop),
    ..CHANGING
};

pub(super) const ARRTRIM: DataCommand = DataCommand {
    name: "json.arrtrim",
    summary: "Trims arrays to what lies between two indexes.",
    complexity: "O(M+N) where M is the number of values that the path looks at, and N the length of the arrays.",
    syntax: "key path start stop",
    arity: 5,
    body: Body::Mutate(trim),
    ..CHANGING
};

pub(super) const ARRINDEX: DataCommand = DataCommand {
    name: "json.arrindex",
    summary: "Returns the index of a value in arrays, or -1.",
    complexity: "O(M+N) where M is the number of values that the path looks at, and N the length of the arrays.",
    syntax: "key path value [start [stop]]",
    arity: -4,
    body: Body::Query(index_of),
    ..READING
};

pub(super) const ARRLEN: DataCommand =
    DataCommand { name: "json.arrlen", summary: "Returns lengths of arrays.", body: Body::Query(length), ..READING };

fn is_array(value: &Json) -> bool {
    value.as_array().is_some()
}

/// The values that words are, for arrays at these places.
fn values(args: Args<'_>, document: &Json, targets: &[Option<Place>]) -> Result<Vec<Json>, Refusal> {
    let values: Vec<_> = args.iter().map(parse).collect::<Result<_, _>>()?;
    let places = || targets.iter().flatten();
    let depth = places().map(|place| place.len() + 1).max().unwrap_or(0);
    check_room(document, depth, &values, places().count())?;
    Ok(values)
}

fn append(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let path = Path::read(args.at(2))?;
    let document = edit.view().json(args.at(1))?.ok_or_else(no_document)?;
    let targets = targets(&document, &path, is_array, "not an array")?;
    let values = values(args.from(3), &document, &targets)?;
    drop(document);
    change_lengths(edit, args, &path, &targets, (Effect::Keeps, "json.arrappend"), writer, |value, _| {
        let Some(array) = value.array_mut() else { return 0 };
        array.insert(array.len(), &values);
        array.len()
    })
}

fn insert(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let (path, index) = (Path::read(args.at(2))?, integer(args.at(3))?);
    let document = edit.view().json(args.at(1))?.ok_or_else(no_document)?;
    let targets = targets(&document, &path, is_array, "not an array")?;
    let values = values(args.from(4), &document, &targets)?;
    let lengths = targets.iter().flatten().filter_map(|place| document.at(place)?.as_array()).map(<[Json]>::len);
    if lengths.into_iter().any(|len| place_in(index, len).is_none()) {
        return Err(Refusal::new("ERR index out of bounds"));
    }
    drop(document);
    change_lengths(edit, args, &path, &targets, (Effect::Moves, "json.arrinsert"), writer, |value, _| {
        let Some(array) = value.array_mut() else { return 0 };
        // An array to which the path leads twice may have become longer, not shorter.
        let place = place_in(index, array.len()).unwrap_or(array.len());
        array.insert(place, &values);
        array.len()
    })
}

/// The place before which an index says, counted from the end if it is negative.
fn place_in(index: i64, len: usize) -> Option<usize> {
    let place = if index < 0 { index.checked_add_unsigned(len as u64)? } else { index };
    usize::try_from(place).ok().filter(|&place| place <= len)
}

fn trim(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let path = Path::read(args.at(2))?;
    let (start, stop) = (integer(args.at(3))?, integer(args.at(4))?);
    let document = edit.view().json(args.at(1))?.ok_or_else(no_document)?;
    let targets = targets(&document, &path, is_array, "not an array")?;
    drop(document);
    change_lengths(edit, args, &path, &targets, (Effect::Moves, "json.arrtrim"), writer, |value, removed| {
        let Some(array) = value.array_mut() else { return 0 };
        let (first, behind) = kept(start, stop, array.len());
        removed.extend(array.take(behind..array.len()));
        removed.extend(array.take(0..first));
        array.len()
    })
}

/// What an array of a length keeps when it is trimmed: the first, and the one behind the last.
fn kept(start: i64, stop: i64, len: usize) -> (usize, usize) {
    let nearest = |index: i64| match usize::try_from(index) {
        Ok(index) => index.min(len.saturating_sub(1)),
        Err(_) => len.saturating_sub(usize::try_from(index.unsigned_abs()).unwrap_or(usize::MAX)),
    };
    let behind = len.min(nearest(stop) + 1);
    if start >= len as i64 || nearest(start) >= behind { (0, 0) } else { (nearest(start), behind) }
}

fn pop(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let mut next = 2;
    let mut expansion = Expansion::Text;
    if let (Some(word), Some(form)) = (args.get(2), args.get(3))
        && is(word, "format")
    {
        expansion = if is(form, "strings") { Expansion::Text } else { Expansion::named(form)? };
        if !is_resp3(writer) {
            return Err(Refusal::new("ERR FORMAT argument is not supported on RESP2"));
        }
        next = 4;
    }
    if args.len() > next + 2 {
        return Err(Refusal::wrong_arity("json.arrpop"));
    }
    let path = path_in(args.get(next))?;
    let index = args.get(next + 1).map_or(Ok(-1), integer)?;
    if path.is_legacy() && expansion != Expansion::Text {
        return Err(Refusal::new("ERR Legacy paths are supported only with FORMAT STRINGS"));
    }
    let key = args.at(1);
    let document = edit.view().json(key)?.ok_or_else(no_document)?;
    let targets = targets(&document, &path, is_array, "not an array")?;
    drop(document);
    let (each, last) = change_each(edit, key, &targets, Effect::Moves, |value, _| {
        let array = value.array_mut()?;
        let nearest = place_in(index, array.len()).unwrap_or(if index < 0 { 0 } else { array.len() });
        let place = nearest.min(array.len().checked_sub(1)?);
        array.take(place..place + 1).pop()
    })?;
    if each.iter().flatten().any(Option::is_some) {
        edit.notify(Class::Module, "json.arrpop", key);
    }
    if path.is_legacy() {
        return match last.flatten() {
            Some(value) => expansion.write(&value, writer),
            None => {
                writer.null();
                Ok(())
            }
        };
    }
    writer.array(each.len());
    for popped in each {
        match popped.flatten() {
            Some(value) => expansion.write(&value, writer)?,
            None => writer.null(),
        }
    }
    Ok(())
}

fn index_of(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    if args.len() > 6 {
        return Err(Refusal::wrong_arity("json.arrindex"));
    }
    let path = Path::read(args.at(2))?;
    let bound = |index: usize| args.get(index).map_or(Ok(0), integer);
    let (start, stop) = (bound(4)?, bound(5)?);
    let document = view.json(args.at(1))?;
    let wanted = parse(args.at(3))?;
    let document = document.ok_or_else(no_path)?;
    let find = |array: &[Json]| {
        let from_end =
            |index: i64| array.len().saturating_sub(usize::try_from(index.unsigned_abs()).unwrap_or(usize::MAX));
        let start = if start < 0 { from_end(start) } else { (start as usize).min(array.len().saturating_sub(1)) };
        let stop = match stop {
            0 => array.len(),
            ..0 => from_end(stop),
            _ => (stop as usize).min(array.len()),
        };
        let searched = array.get(start..stop).unwrap_or_default();
        searched.iter().position(|value| *value == wanted).map_or(-1, |place| (start + place) as i64)
    };
    let values = path.values(&document)?;
    if path.is_legacy() {
        let first = values.first().ok_or_else(no_path)?;
        writer.integer(find(first.as_array().ok_or_else(|| wrong_type("array"))?));
        return Ok(());
    }
    writer.array(values.len());
    for value in values {
        match value.as_array() {
            Some(array) => writer.integer(find(array)),
            None => writer.null(),
        }
    }
    Ok(())
}

fn length(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let path = path_in(args.get(2))?;
    let Some(document) = view.json(args.at(1))? else {
        if path.is_legacy() {
            writer.null();
            return Ok(());
        }
        return Err(no_document());
    };
    let values = path.values(&document)?;
    if path.is_legacy() {
        let first = values.first().ok_or_else(no_path)?;
        writer.count(first.as_array().ok_or_else(|| no_path_or("not an array"))?.len());
        return Ok(());
    }
    let lengths: Vec<_> = values.iter().map(|value| value.as_array().map(<[Json]>::len)).collect();
    write_integers(writer, &lengths);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The twin: look at every place and ask whether it lies between the two ends.
    #[test]
    fn what_is_kept_of_an_array_lies_between_the_indexes() {
        for len in 0..5i64 {
            for start in (-7..7).chain([i64::MIN, i64::MAX]) {
                for stop in (-7..7).chain([i64::MIN, i64::MAX]) {
                    let from_front = |index: i64| if index < 0 { index.saturating_add(len).max(0) } else { index };
                    let lies_between = |place: &i64| from_front(start) <= *place && *place <= from_front(stop);
                    let naive: Vec<i64> = (0..len).filter(lies_between).collect();
                    let (first, behind) = kept(start, stop, len as usize);
                    let kept: Vec<i64> = (first as i64..behind as i64).collect();
                    assert_eq!(kept, naive, "{start} to {stop} of {len}");
                }
            }
        }
    }

    #[test]
    fn places_are_counted_from_both_ends() {
        for (index, len, place) in [
            (0, 0, Some(0)),
            (1, 0, None),
            (-1, 0, None),
            (2, 2, Some(2)),
            (-2, 2, Some(0)),
            (-3, 2, None),
            (i64::MIN, 2, None),
            (i64::MAX, 2, None),
        ] {
            assert_eq!(place_in(index, len), place, "{index} of {len}");
        }
    }
}
