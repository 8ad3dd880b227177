//! Values set, merged and removed.

use std::cell::Cell;

use command::{Access, Begin, Find, KeySpec, Refusal};
use resp::{Args, Writer};

use super::{CHANGING, GROWING, check_room, in_order_of_removal, no_document, outermost, path_in};
use crate::commands::arguments::is;
use crate::commands::{Body, DataCommand};
use crate::json::parse::parse;
use crate::json::path::{Addition, Path};
use crate::json::{Hole, Json, Place, Text};
use crate::{Class, Edit};

pub(super) const SET: DataCommand = DataCommand {
    name: "json.set",
    summary: "Sets the values at a path, or creates a document.",
    complexity: "O(M+N) where M is the number of values that the path looks at, and N the size of the new value.",
    syntax: "key path value [NX | XX]",
    arity: -4,
    flags: GROWING,
    body: Body::Mutate(set),
    ..CHANGING
};

pub(super) const MSET: DataCommand = DataCommand {
    name: "json.mset",
    since: "2.6.0",
    summary: "Sets values in one or more documents.",
    complexity: "O(K*(M+N)) where K is the number of keys, and M and N are as for JSON.SET.",
    syntax: "key path value [key path value ...]",
    arity: -4,
    flags: GROWING,
    keys: &[KeySpec {
        access: Access::ReadWrite,
        begin: Begin::Index(1),
        find: Find::Range { last: -1, step: 3, limit: 0 },
        notes: &["access", "update"],
    }],
    body: Body::Mutate(mset),
    ..CHANGING
};

pub(super) const MERGE: DataCommand = DataCommand {
    name: "json.merge",
    since: "2.6.0",
    summary: "Merges a value into those at a path: names are added or replaced, and removed by null.",
    complexity: "O(M+N) where M is the number of values that the path looks at, and N the size of the new value.",
    syntax: "key path value",
    arity: 4,
    flags: GROWING,
    body: Body::Mutate(merge),
    ..CHANGING
};

pub(super) const DEL: DataCommand =
    DataCommand { name: "json.del", summary: "Removes the values at a path.", body: Body::Mutate(delete), ..CHANGING };

pub(super) const FORGET: DataCommand = DataCommand { name: "json.forget", ..DEL };

pub(super) const CLEAR: DataCommand = DataCommand {
    name: "json.clear",
    since: "2.0.0",
    summary: "Empties arrays and objects, and sets numbers to 0.",
    body: Body::Mutate(clear),
    ..CHANGING
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    None,
    Absent,
    Present,
}

/// What a path that something is set under leads to.
enum Target {
    Replace(Place),
    Add(Place, Text),
}

impl Target {
    /// How deep a value lies that is set there.
    fn depth(&self) -> usize {
        match self {
            Self::Replace(place) => place.len(),
            Self::Add(place, _) => place.len() + 1,
        }
    }
}

/// Where a value would be set, and whether it could be set everywhere.
struct Targets {
    list: Vec<Target>,
    is_complete: bool,
}

/// Where a value is set in a document.
///
/// # Errors
/// If the path leads nowhere, and nothing can be added there.
fn targets(document: &Json, path: &Path, condition: Condition, nests: bool) -> Result<Targets, Refusal> {
    if condition != Condition::Absent {
        let places: Vec<_> = path.find(document)?.into_iter().map(|found| found.place).collect();
        let places = if nests { places } else { outermost(places) };
        if !places.is_empty() {
            return Ok(Targets { list: places.into_iter().map(Target::Replace).collect(), is_complete: true });
        }
    }
    let mut targets = Targets { list: Vec::new(), is_complete: condition != Condition::Present };
    if condition == Condition::Present {
        return Ok(targets);
    }
    let additions = path.additions(document)?;
    targets.is_complete = !additions.is_empty();
    for addition in additions {
        match addition {
            Addition::Index if path.values(document)?.is_empty() => {
                return Err(Refusal::new("ERR array index out of range"));
            }
            Addition::Name(place, name)
                if document.at(&place).and_then(Json::as_object).is_some_and(|object| object.get(&name).is_none()) =>
            {
                targets.list.push(Target::Add(place, name));
            }
            Addition::Index | Addition::Name(..) => targets.is_complete = false,
        }
    }
    Ok(targets)
}

fn check_targets(document: &Json, targets: &[Target], value: &Json) -> Result<(), Refusal> {
    let depth = targets.iter().map(Target::depth).max().unwrap_or(0);
    check_room(document, depth, std::slice::from_ref(value), targets.len())
}

/// Sets the value everywhere; false if a place has gone away since.
fn apply(document: &mut Json, targets: &[Target], value: &Json, removed: &mut Vec<Json>) -> bool {
    let mut is_complete = true;
    for target in targets {
        is_complete &= match target {
            Target::Replace(place) => {
                document.change_at(place, |old| removed.push(std::mem::replace(old, value.clone()))).is_some()
            }
            Target::Add(place, name) => add(document, place, name, value),
        };
    }
    is_complete
}

/// Adds a value to an object; false if there is none any more.
fn add(document: &mut Json, place: &Place, name: &Text, value: &Json) -> bool {
    let added = document.change_at(place, |holder| {
        let object = holder.object_mut()?;
        object.set(name, value.clone());
        Some(())
    });
    added.flatten().is_some()
}

fn only_at_the_root() -> Refusal {
    Refusal::new("ERR new objects must be created at the root")
}

fn set(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let (key, path) = (args.at(1), Path::read(args.at(2))?);
    let mut condition = Condition::None;
    for word in args.iter().skip(4) {
        condition = match condition {
            Condition::None if is(word, "nx") => Condition::Absent,
            Condition::None if is(word, "xx") => Condition::Present,
            _ => return Err(Refusal::SYNTAX),
        };
    }
    let document = edit.view().json(key)?;
    let value = parse(args.at(3))?;
    let is_done = match document {
        None if condition == Condition::Present => false,
        None if !path.is_root() => return Err(only_at_the_root()),
        Some(_) if path.is_root() && condition == Condition::Absent => false,
        _ if path.is_root() => {
            edit.set_json(key, value)?;
            edit.notify(Class::Module, "json.set", key);
            true
        }
        None => unreachable!("without a document the path is its root"),
        Some(document) => {
            let targets = targets(&document, &path, condition, false)?;
            check_targets(&document, &targets.list, &value)?;
            drop(document);
            let mut is_done = targets.is_complete;
            if !targets.list.is_empty() {
                is_done &=
                    edit.change_json(key, |document, removed| apply(document, &targets.list, &value, removed))?;
                edit.notify(Class::Module, "json.set", key);
            }
            is_done
        }
    };
    if is_done {
        writer.ok()
    } else {
        writer.null()
    }
    Ok(())
}

fn mset(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    if !(args.len() - 1).is_multiple_of(3) {
        return Err(Refusal::wrong_arity("json.mset"));
    }
    // All is looked at before anything is changed. A value that an earlier one of the same request replaces may make a
    // later place go away; then nothing is set there.
    let mut changes = Vec::new();
    let mut is_complete = true;
    for first in (1..args.len()).step_by(3) {
        let (key, path) = (args.at(first), Path::read(args.at(first + 1))?);
        let document = edit.view().json(key)?;
        let value = parse(args.at(first + 2))?;
        let targets = match document {
            _ if path.is_root() => None,
            None => return Err(only_at_the_root()),
            Some(document) => {
                let targets = targets(&document, &path, Condition::None, false)?;
                check_targets(&document, &targets.list, &value)?;
                is_complete &= targets.is_complete;
                Some(targets.list)
            }
        };
        changes.push((key, targets, value));
    }
    for (key, targets, value) in changes {
        match targets {
            None => edit.set_json(key, value)?,
            Some(targets) if targets.is_empty() => continue,
            Some(targets) => edit.change_json(key, |document, removed| {
                // What has been set before in this request counts.
                is_complete &=
                    check_targets(document, &targets, &value).is_ok() && apply(document, &targets, &value, removed);
            })?,
        }
        edit.notify(Class::Module, "json.mset", key);
    }
    if is_complete {
        writer.ok()
    } else {
        writer.null()
    }
    Ok(())
}

fn merge(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let (key, path) = (args.at(1), Path::read(args.at(2))?);
    let document = edit.view().json(key)?;
    let value = parse(args.at(3))?;
    let Some(document) = document else {
        if !path.is_root() {
            return Err(only_at_the_root());
        }
        edit.set_json(key, value)?;
        edit.notify(Class::Module, "json.merge", key);
        writer.ok();
        return Ok(());
    };
    let targets = targets(&document, &path, Condition::None, true)?;
    check_targets(&document, &targets.list, &value)?;
    drop(document);
    let any = Cell::new(false);
    let hole = Hole::at(edit.view().level());
    if !targets.list.is_empty() {
        edit.change_json(key, |document, removed| {
            for target in &targets.list {
                match target {
                    // One that lay in a value which is gone by now is left out.
                    Target::Replace(place) => {
                        document.change_at(place, |old| {
                            merge_into(old, &value, removed, hole);
                            any.set(true);
                        });
                    }
                    Target::Add(place, name) => {
                        if add(document, place, name, &value) {
                            any.set(true);
                        }
                    }
                }
            }
        })?;
    }
    if any.get() {
        edit.notify(Class::Module, "json.merge", key);
        writer.ok();
    } else {
        writer.null();
    }
    Ok(())
}

/// Merges a value into another, as RFC 7396 has it.
fn merge_into(old: &mut Json, patch: &Json, removed: &mut Vec<Json>, hole: Hole) {
    let Some(names) = patch.as_object() else {
        removed.push(std::mem::replace(old, patch.clone()));
        return;
    };
    if old.as_object().is_none() {
        removed.push(std::mem::replace(old, Json::object(Vec::new())));
    }
    let object = old.object_mut().expect("it is one now");
    for (name, value) in names.iter() {
        if let Json::Null = value {
            removed.extend(object.remove(name, hole));
        } else {
            object.change(name, |old| merge_into(old, value, removed, hole));
        }
    }
}

fn delete(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let key = args.at(1);
    if args.len() > 3 {
        return Err(Refusal::wrong_arity(if is(args.at(0), "json.del") { "json.del" } else { "json.forget" }));
    }
    let path = path_in(args.get(2))?;
    let Some(document) = edit.view().json(key)? else {
        writer.integer(0);
        return Ok(());
    };
    let count = if path.is_root() {
        edit.remove(key);
        1
    } else {
        let mut places = outermost(path.find(&document)?.into_iter().map(|found| found.place).collect());
        drop(document);
        let hole = Hole::at(edit.view().level());
        if hole == Hole::TakenByLast {
            places = in_order_of_removal(places);
        }
        if !places.is_empty() {
            let is_empty = edit.change_json(key, |document, removed| {
                removed.extend(places.iter().filter_map(|place| document.remove_at(place, hole)));
                match document {
                    Json::Array(array) => array.len() == 0,
                    Json::Object(object) => object.len() == 0,
                    _ => false,
                }
            })?;
            if is_empty {
                edit.remove(key);
            }
        }
        places.len()
    };
    if count > 0 {
        edit.notify(Class::Module, "json.del", key);
    }
    writer.count(count);
    Ok(())
}

fn clear(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let key = args.at(1);
    if args.len() > 3 {
        return Err(Refusal::wrong_arity("json.clear"));
    }
    let path = path_in(args.get(2))?;
    let document = edit.view().json(key)?.ok_or_else(no_document)?;
    let is_full = |value: &Json| match value {
        Json::Array(array) => array.len() > 0,
        Json::Object(object) => object.len() > 0,
        number => number.as_double().is_some_and(|number| number != 0.0),
    };
    let found = path.find(&document)?.into_iter().filter(|found| is_full(found.value));
    let places = outermost(found.map(|found| found.place).collect());
    drop(document);
    if !places.is_empty() {
        edit.change_json(key, |document, removed| {
            for place in &places {
                document.change_at(place, |value| {
                    let empty = match value {
                        Json::Array(_) => Json::array(Vec::new()),
                        Json::Object(_) => Json::object(Vec::new()),
                        _ => Json::Integer(0),
                    };
                    removed.push(std::mem::replace(value, empty));
                });
            }
        })?;
        edit.notify(Class::Module, "json.clear", key);
    }
    writer.count(places.len());
    Ok(())
}
