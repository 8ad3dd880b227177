//! GEOADD.

use command::{Access, Flag, Group, Refusal, Span};
use resp::{Args, Writer};

use crate::Edit;
use crate::commands::arguments::is;
use crate::commands::key_specs::key_at;
use crate::commands::sorted_set::add::{Conditions, add_all};
use crate::commands::{Body, DataCommand};

pub(super) const GEOADD: DataCommand = DataCommand {
    name: "geoadd",
    since: "3.2.0",
    group: Group::Geo,
    summary: "Sets the places on the earth of members of a sorted set.",
    complexity: "O(M log N) with M the number of members given.",
    syntax: "key [NX | XX] [CH] longitude latitude member [longitude latitude member ...]",
    arity: -5,
    flags: &[Flag::Write, Flag::Denyoom],
    categories: &[],
    keys: &[key_at(1, Access::ReadWrite, &["update"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(geoadd),
};

fn geoadd(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let (mut conditions, mut counts_changes, mut first) = (Conditions::default(), false, 2);
    while let Some(word) = args.get(first) {
        match () {
            () if is(word, "nx") => conditions.if_new = true,
            () if is(word, "xx") => conditions.if_there = true,
            () if is(word, "ch") => counts_changes = true,
            () => break,
        }
        first += 1;
    }
    let words = args.len() - first;
    if words == 0 || !words.is_multiple_of(3) || (conditions.if_new && conditions.if_there) {
        return Err(Refusal::SYNTAX);
    }
    let scores = (first..args.len()).step_by(3).map(|at| Ok(super::point(args, at)?.score()));
    let scores = scores.collect::<Result<Vec<_>, Refusal>>()?;
    let members = scores.into_iter().zip(args.iter().skip(first + 2).step_by(3));
    add_all(edit, args.at(1), members, conditions, counts_changes, writer)
}
