//! Numbers and truth values.

use std::collections::BTreeMap;

use command::Refusal;
use resp::{Args, Writer};

use super::{CHANGING, Effect, change_each, is_resp3, no_document, targets, write_double, write_integers};
use crate::commands::{Body, DataCommand};
use crate::json::parse::parse;
use crate::json::path::Path;
use crate::json::{Json, Place};
use crate::{Class, Edit};

pub(super) const NUMINCRBY: DataCommand = DataCommand {
    name: "json.numincrby",
    summary: "Adds a number to those at a path.",
    syntax: "key path value",
    arity: 4,
    body: Body::Mutate(|edit, args, writer| calculate(edit, args, writer, &ADDITION)),
    ..CHANGING
};

pub(super) const NUMMULTBY: DataCommand = DataCommand {
    name: "json.nummultby",
    summary: "Multiplies the numbers at a path.",
    body: Body::Mutate(|edit, args, writer| calculate(edit, args, writer, &MULTIPLICATION)),
    ..NUMINCRBY
};

pub(super) const TOGGLE: DataCommand = DataCommand {
    name: "json.toggle",
    since: "2.0.0",
    summary: "Makes true false, and false true.",
    syntax: "key path",
    arity: 3,
    body: Body::Mutate(toggle),
    ..CHANGING
};

struct Operation {
    event: &'static str,
    of_integers: fn(i64, i64) -> Option<i64>,
    of_doubles: fn(f64, f64) -> f64,
}

const ADDITION: Operation =
    Operation { event: "json.numincrby", of_integers: i64::checked_add, of_doubles: |left, right| left + right };
const MULTIPLICATION: Operation =
    Operation { event: "json.nummultby", of_integers: i64::checked_mul, of_doubles: |left, right| left * right };

impl Operation {
    /// Whole numbers give a whole number, and must; others one with a fraction.
    fn apply(&self, left: &Json, right: &Json) -> Result<Json, Refusal> {
        if let (Json::Integer(left), Json::Integer(right)) = (left, right) {
            let result = (self.of_integers)(*left, *right);
            return result.map(Json::Integer).ok_or(Refusal::new("ERR numeric overflow"));
        }
        let result = left.as_double().zip(right.as_double()).map(|(left, right)| (self.of_doubles)(left, right));
        let is_number = |result: &f64| result.is_finite();
        result.filter(is_number).map(Json::Double).ok_or(Refusal::new("ERR result is not a number"))
    }
}

fn calculate(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer, operation: &Operation) -> Result<(), Refusal> {
    let (key, path) = (args.at(1), Path::read(args.at(2))?);
    let document = edit.view().json(key)?.ok_or_else(no_document)?;
    let operand = parse(args.at(3))?;
    if !operand.is_number() {
        return Err(Refusal::new("ERR bad input number"));
    }
    let targets = targets(&document, &path, Json::is_number, "does not contains a number")?;
    // A value that the path leads to twice is changed twice.
    let mut results: BTreeMap<&Place, Json> = BTreeMap::new();
    let mut answers = Vec::new();
    for target in &targets {
        answers.push(match target {
            None => Json::Null,
            Some(place) => {
                let before = results.get(place).or_else(|| document.at(place)).unwrap_or(&Json::Null);
                let result = operation.apply(before, &operand)?;
                results.insert(place, result.clone());
                result
            }
        });
    }
    drop(document);
    if !results.is_empty() {
        edit.change_json(key, |document, _| {
            for (place, result) in &results {
                document.change_at(place, |number| *number = result.clone());
            }
        })?;
        edit.notify(Class::Module, operation.event, key);
    }
    if is_resp3(writer) {
        writer.array(answers.len());
        for answer in &answers {
            match *answer {
                Json::Integer(number) => writer.integer(number),
                ref number => match number.as_double() {
                    Some(number) => write_double(writer, number),
                    None => writer.null(),
                },
            }
        }
    } else if path.is_legacy() {
        let last = answers.iter().rfind(|answer| answer.is_number()).unwrap_or(&Json::Null);
        writer.bulk(&last.print_plain());
    } else {
        writer.bulk(&Json::array(answers).print_plain());
    }
    Ok(())
}

fn toggle(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let (key, path) = (args.at(1), Path::read(args.at(2))?);
    let document = edit.view().json(key)?.ok_or_else(no_document)?;
    let targets = targets(&document, &path, |value| matches!(value, Json::Bool(_)), "not a bool")?;
    drop(document);
    let (each, last) = change_each(edit, key, &targets, Effect::Keeps, |value, _| {
        let Json::Bool(truth) = value else { return false };
        *truth = !*truth;
        *truth
    })?;
    if last.is_some() {
        edit.notify(Class::Module, "json.toggle", key);
    }
    if path.is_legacy() {
        writer.bulk(if last == Some(true) { b"true" } else { b"false" });
    } else {
        let numbers: Vec<_> = each.into_iter().map(|truth| truth.map(usize::from)).collect();
        write_integers(writer, &numbers);
    }
    Ok(())
}
