//! HINCRBY and HINCRBYFLOAT: fields as numbers.

use command::{Access, Flag, Group, Refusal, Span};
use resp::{Args, Writer};

use crate::collection::hash::expiring::Keeping;
use crate::commands::arguments::{integer, parse_integer};
use crate::commands::extended::Extended;
use crate::commands::string::first_key;
use crate::commands::{Body, DataCommand};
use crate::{Class, Edit, ItoaBuffer};

pub(super) const HINCRBY: DataCommand = DataCommand {
    name: "hincrby",
    since: "2.0.0",
    group: Group::Hash,
    summary: "Adds an integer to the one in a field.",
    complexity: "O(1)",
    syntax: "key field increment",
    arity: 4,
    flags: &[Flag::Write, Flag::Denyoom, Flag::Fast],
    categories: &[],
    keys: &[first_key(Access::ReadWrite, &["access", "update"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(hincrby),
};
fn hincrby(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let field = args.at(2);
    let increment = integer(args.at(3))?;
    let sum = edit.modify_hash(args.at(1), |hash| {
        let old = match hash.as_ref().get(field) {
            Some(text) => parse_integer(text).ok_or_else(|| Refusal::new("ERR hash value is not an integer"))?,
            None => 0,
        };
        let sum = old.checked_add(increment).ok_or(Refusal::OVERFLOW)?;
        hash.put(field, ItoaBuffer::new().format(sum), Keeping::Deadline);
        Ok::<_, Refusal>(sum)
    })??;
    edit.notify(Class::Hash, "hincrby", args.at(1));
    writer.integer(sum);
    Ok(())
}

pub(super) const HINCRBYFLOAT: DataCommand = DataCommand {
    name: "hincrbyfloat",
    since: "2.6.0",
    group: Group::Hash,
    summary: "Adds a number to the one in a field.",
    complexity: "O(1)",
    syntax: "key field increment",
    arity: 4,
    flags: &[Flag::Write, Flag::Denyoom, Flag::Fast],
    categories: &[],
    keys: &[first_key(Access::ReadWrite, &["access", "update"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(hincrbyfloat),
};
fn hincrbyfloat(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let field = args.at(2);
    let increment = Extended::parse(args.at(3)).ok_or(Refusal::NOT_A_FLOAT)?;
    if !increment.is_finite() {
        return Err(Refusal::new("ERR value is NaN or Infinity"));
    }
    let text = edit.modify_hash(args.at(1), |hash| {
        let old = match hash.as_ref().get(field) {
            Some(text) => Extended::parse(text).ok_or_else(|| Refusal::new("ERR hash value is not a float"))?,
            None => 0.into(),
        };
        let text = old.checked_add(increment).ok_or(Refusal::NAN_OR_INFINITY)?.print();
        hash.put(field, text.as_bytes(), Keeping::Deadline);
        Ok::<_, Refusal>(text)
    })??;
    edit.notify(Class::Hash, "hincrbyfloat", args.at(1));
    writer.bulk(text.as_bytes());
    Ok(())
}
