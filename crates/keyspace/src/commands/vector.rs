//! Vector sets: what Redis 8 answers, from VADD to VRANGE.

mod add;
mod look;
mod similar;
#[cfg(test)]
mod tests;

use command::{Flag, Group, Refusal};
use resp::Args;

use super::arguments::{at_least, is, parse_integer};
use super::key_specs::{CHANGED_KEY, READ_KEY};
use super::{BLANK, DataCommand, write_double};
use crate::View;
use crate::vector::VectorSet;
use crate::vector::measure::{self, DIMENSIONS_MAX};

/// Every command on vector sets.
pub(super) const COMMANDS: &[&DataCommand] = &[
    &add::VADD,
    &add::VREM,
    &add::VSETATTR,
    &similar::VSIM,
    &look::VCARD,
    &look::VDIM,
    &look::VEMB,
    &look::VGETATTR,
    &look::VINFO,
    &look::VISMEMBER,
    &look::VLINKS,
    &look::VRANDMEMBER,
    &look::VRANGE,
];

/// What commands that read one element have in common.
const READING: DataCommand = DataCommand {
    since: "8.0.0",
    group: Group::VectorSet,
    complexity: "O(1)",
    syntax: "key",
    arity: 2,
    flags: &[Flag::Readonly, Flag::Fast],
    keys: READ_KEY,
    ..BLANK
};

/// What commands that change sets have in common.
const CHANGING: DataCommand = DataCommand { flags: &[Flag::Write], keys: CHANGED_KEY, ..READING };

/// Most products of dimensions of a projection: what its weights would take in a file of Redis is 256 MiB then.
const PROJECTION_MAX: usize = 1 << 26;

/// A vector as it is given.
struct Given {
    vector: Vec<f32>,
    /// How many dimensions to project it onto; 0 if that is not said.
    reduced: usize,
    /// Words that it takes.
    words: usize,
}

impl Given {
    /// Reads `[REDUCE dim] FP32 blob` or `[REDUCE dim] VALUES count number...` from a word on.
    ///
    /// # Errors
    /// What is no vector.
    fn read(args: Args<'_>, first: usize, may_reduce: bool) -> Result<Self, Refusal> {
        Self::find(args, first, may_reduce).ok_or(Refusal::new("ERR invalid vector specification"))
    }

    fn find(args: Args<'_>, first: usize, may_reduce: bool) -> Option<Self> {
        let (mut at, mut reduced) = (first, 0);
        if may_reduce && args.len() > first + 2 && is(args.at(first), "reduce") {
            reduced = parse_integer(args.at(first + 1)).and_then(|number| usize::try_from(number).ok())?;
            (reduced > 0).then_some(())?;
            at += 2;
        }
        let form = args.get(at)?;
        let (vector, end): (Vec<f32>, usize) = if is(form, "fp32") {
            let blob = args.get(at + 1)?;
            blob.len().is_multiple_of(4).then_some(())?;
            (measure::numbers(blob).collect(), at + 2)
        } else if is(form, "values") {
            let count = parse_integer(args.get(at + 1)?).and_then(|count| usize::try_from(count).ok())?;
            (count <= DIMENSIONS_MAX && args.len() >= at + 2 + count).then_some(())?;
            let words = args.iter().skip(at + 2).take(count);
            (
                words.map(|word| crate::double::parse(word).map(|number| number as f32)).collect::<Option<_>>()?,
                at + 2 + count,
            )
        } else {
            return None;
        };
        // What is not finite has no direction.
        let is_vector = (1..=DIMENSIONS_MAX).contains(&vector.len()) && vector.iter().all(|number| number.is_finite());
        let is_projection = reduced <= vector.len() && reduced * vector.len() <= PROJECTION_MAX;
        (is_vector && is_projection).then_some(Self { vector, reduced, words: end - first })
    }
}

/// The element that a request names, if there is such a one.
fn element<'a>(view: &View<'a>, args: Args<'_>) -> Result<Option<(&'a VectorSet, u32)>, Refusal> {
    Ok(view.vectors(args.at(1))?.and_then(|set| set.find(args.at(2)).map(|slot| (set, slot))))
}

fn wrong_dimensions(given: usize, kept: u32) -> Refusal {
    Refusal::new(format!("ERR Vector dimension mismatch - got {given} but set has {kept}"))
}

fn wrong_given_dimensions(given: usize, expected: u32) -> Refusal {
    let text = format!("ERR Input dimension mismatch for projection - got {given} but projection expects {expected}");
    Refusal::new(text)
}

/// The number of an option, if it is one of these; `complaint` if not.
fn option(word: &[u8], least: usize, most: usize, complaint: &'static str) -> Result<usize, Refusal> {
    at_least(least, word, complaint).and_then(|number| match number <= most {
        true => Ok(number),
        false => Err(Refusal::new(complaint)),
    })
}
