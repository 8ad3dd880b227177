//! Looking at members of sorted sets.

use command::{Access, Flag, Group, Refusal, Span};
use resp::{Args, Writer};

use super::write_score;
use crate::commands::arguments::is;
use crate::commands::key_specs::key_at;
use crate::commands::scan::Step;
use crate::commands::{Body, DataCommand, print_double};
use crate::{ItoaBuffer, View, double};

pub(super) const ZCARD: DataCommand = DataCommand {
    name: "zcard",
    since: "1.2.0",
    group: Group::SortedSet,
    summary: "Returns how many members a sorted set has.",
    complexity: "O(1)",
    syntax: "key",
    arity: 2,
    flags: &[Flag::Readonly, Flag::Fast],
    categories: &[],
    keys: &[key_at(1, Access::Read, &[])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(zcard),
};

pub(super) const ZSCORE: DataCommand = DataCommand {
    name: "zscore",
    since: "1.2.0",
    group: Group::SortedSet,
    summary: "Returns the score of a member of a sorted set.",
    complexity: "O(log N)",
    syntax: "key member",
    arity: 3,
    flags: &[Flag::Readonly, Flag::Fast],
    categories: &[],
    keys: &[key_at(1, Access::Read, &["access"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(zscore),
};

pub(super) const ZMSCORE: DataCommand = DataCommand {
    name: "zmscore",
    since: "6.2.0",
    group: Group::SortedSet,
    summary: "Returns the scores of several members of a sorted set.",
    complexity: "O(M log N) with M the number of members asked for.",
    syntax: "key member [member ...]",
    arity: -3,
    flags: &[Flag::Readonly, Flag::Fast],
    categories: &[],
    keys: &[key_at(1, Access::Read, &["access"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(zmscore),
};

pub(super) const ZRANK: DataCommand = DataCommand {
    name: "zrank",
    since: "2.0.0",
    group: Group::SortedSet,
    summary: "Returns the rank of a member of a sorted set, from the lowest score.",
    complexity: "O(log N)",
    syntax: "key member [WITHSCORE]",
    arity: -3,
    flags: &[Flag::Readonly, Flag::Fast],
    categories: &[],
    keys: &[key_at(1, Access::Read, &["access"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(zrank),
};

pub(super) const ZREVRANK: DataCommand = DataCommand {
    name: "zrevrank",
    since: "2.0.0",
    group: Group::SortedSet,
    summary: "Returns the rank of a member of a sorted set, from the highest score.",
    complexity: "O(log N)",
    syntax: "key member [WITHSCORE]",
    arity: -3,
    flags: &[Flag::Readonly, Flag::Fast],
    categories: &[],
    keys: &[key_at(1, Access::Read, &["access"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(zrevrank),
};

pub(super) const ZSCAN: DataCommand = DataCommand {
    name: "zscan",
    since: "2.8.0",
    group: Group::SortedSet,
    summary: "Iterates over the members of a sorted set and their scores, some at a time.",
    complexity: "O(1) for every call, O(N) for a whole walk.",
    syntax: "key cursor [MATCH pattern] [COUNT count]",
    arity: -3,
    flags: &[Flag::Readonly],
    categories: &[],
    keys: &[key_at(1, Access::Read, &["access"])],
    tips: &["nondeterministic_output"],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(zscan),
};

fn zcard(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    writer.count(view.sorted_set(args.at(1))?.map_or(0, |set| set.len()));
    Ok(())
}

fn zscore(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let score = view.sorted_set(args.at(1))?.and_then(|set| set.score(args.at(2)));
    write_or_null(writer, score);
    Ok(())
}

fn zmscore(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let set = view.sorted_set(args.at(1))?;
    let members = args.from(2);
    writer.array(members.len());
    members.iter().for_each(|member| write_or_null(writer, set.and_then(|set| set.score(member))));
    Ok(())
}

fn write_or_null(writer: &mut Writer, score: Option<f64>) {
    match score {
        Some(score) => write_score(writer, score),
        None => writer.null(),
    }
}

fn zrank(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    answer_rank(view, args, "zrank", writer, |rank, _| rank)
}

fn zrevrank(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    answer_rank(view, args, "zrevrank", writer, |rank, len| len - 1 - rank)
}

/// Answers with what `count` makes of a member's rank and the number of members, and with its score if that is wanted.
fn answer_rank(
    view: &View<'_>,
    args: Args<'_>,
    command: &str,
    writer: &mut Writer,
    count: impl FnOnce(usize, usize) -> usize,
) -> Result<(), Refusal> {
    let with_score = match (args.get(3), args.get(4)) {
        (None, _) => false,
        (Some(_), Some(_)) => return Err(Refusal::wrong_arity(command)),
        (Some(word), None) if is(word, "withscore") => true,
        (Some(_), None) => return Err(Refusal::SYNTAX),
    };
    let found = view.sorted_set(args.at(1))?.and_then(|set| Some((set.rank(args.at(2))?, set.len())));
    match found {
        Some(((rank, score), len)) => {
            if with_score {
                writer.array(2);
            }
            writer.count(count(rank, len));
            if with_score {
                write_score(writer, score);
            }
        }
        None if with_score => writer.null_array(),
        None => writer.null(),
    }
    Ok(())
}

fn zscan(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let cursor = Step::cursor(args)?;
    let Some(set) = view.sorted_set(args.at(1))? else {
        Step::write_end(writer);
        return Ok(());
    };
    let mut step = Step::new(args, writer)?;
    let digits = writer.digits();
    let next = set.scan(cursor, step.count(), |member, score| {
        if step.selects(member) {
            step.push(member);
            // Redis keeps packed integers as such and shows all their digits.
            match double::exact_integer(score).filter(|_| set.is_packed()) {
                Some(integer) => step.push(ItoaBuffer::new().format(integer)),
                None => step.push(print_double(score, digits).as_bytes()),
            }
        }
    });
    step.write(next, writer);
    Ok(())
}
