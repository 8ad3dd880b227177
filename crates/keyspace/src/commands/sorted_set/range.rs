//! Members of sorted sets by rank, score or name.

use std::ops::Range;

use command::{Access, Flag, Group, Refusal, Span};
use resp::{Args, Writer};

use super::write_members;
use crate::collection::sorted_set::{Cut, Iter};
use crate::commands::arguments::{integer, is, ranks_between};
use crate::commands::key_specs::key_at;
use crate::commands::{Body, DataCommand};
use crate::{Edit, SortedSet, View, double};

pub(super) const ZRANGE: DataCommand = DataCommand {
    name: "zrange",
    since: "1.2.0",
    group: Group::SortedSet,
    summary: "Returns the members of a sorted set between two ranks, scores or names.",
    complexity: "O(log(N)+M) with M the number of members returned.",
    syntax: "key start stop [BYSCORE | BYLEX] [REV] [LIMIT offset count] [WITHSCORES]",
    arity: -4,
    flags: &[Flag::Readonly],
    categories: &[],
    keys: &[key_at(1, Access::Read, &["access"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(zrange),
};

pub(super) const ZREVRANGE: DataCommand = DataCommand {
    name: "zrevrange",
    since: "1.2.0",
    group: Group::SortedSet,
    summary: "Returns the members of a sorted set between two ranks, counted from the highest score.",
    complexity: "O(log(N)+M) with M the number of members returned.",
    syntax: "key start stop [WITHSCORES]",
    arity: -4,
    flags: &[Flag::Readonly],
    categories: &[],
    keys: &[key_at(1, Access::Read, &["access"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(zrevrange),
};

pub(super) const ZRANGEBYSCORE: DataCommand = DataCommand {
    name: "zrangebyscore",
    since: "1.0.5",
    group: Group::SortedSet,
    summary: "Returns the members of a sorted set between two scores.",
    complexity: "O(log(N)+M) with M the number of members returned.",
    syntax: "key min max [WITHSCORES] [LIMIT offset count]",
    arity: -4,
    flags: &[Flag::Readonly],
    categories: &[],
    keys: &[key_at(1, Access::Read, &["access"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(zrangebyscore),
};

pub(super) const ZREVRANGEBYSCORE: DataCommand = DataCommand {
    name: "zrevrangebyscore",
    since: "2.2.0",
    group: Group::SortedSet,
    summary: "Returns the members of a sorted set between two scores, the highest first.",
    complexity: "O(log(N)+M) with M the number of members returned.",
    syntax: "key max min [WITHSCORES] [LIMIT offset count]",
    arity: -4,
    flags: &[Flag::Readonly],
    categories: &[],
    keys: &[key_at(1, Access::Read, &["access"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(zrevrangebyscore),
};

pub(super) const ZRANGEBYLEX: DataCommand = DataCommand {
    name: "zrangebylex",
    since: "2.8.9",
    group: Group::SortedSet,
    summary: "Returns the members between two names of a sorted set with equal scores.",
    complexity: "O(log(N)+M) with M the number of members returned.",
    syntax: "key min max [LIMIT offset count]",
    arity: -4,
    flags: &[Flag::Readonly],
    categories: &[],
    keys: &[key_at(1, Access::Read, &["access"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(zrangebylex),
};

pub(super) const ZREVRANGEBYLEX: DataCommand = DataCommand {
    name: "zrevrangebylex",
    since: "2.8.9",
    group: Group::SortedSet,
    summary: "Returns the members between two names of a sorted set with equal scores, the last first.",
    complexity: "O(log(N)+M) with M the number of members returned.",
    syntax: "key max min [LIMIT offset count]",
    arity: -4,
    flags: &[Flag::Readonly],
    categories: &[],
    keys: &[key_at(1, Access::Read, &["access"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(zrevrangebylex),
};

pub(super) const ZRANGESTORE: DataCommand = DataCommand {
    name: "zrangestore",
    since: "6.2.0",
    group: Group::SortedSet,
    summary: "Stores the members of a sorted set between two ranks, scores or names under another key.",
    complexity: "O(log(N)+M log M) with M the number of members stored.",
    syntax: "dst src min max [BYSCORE | BYLEX] [REV] [LIMIT offset count]",
    arity: -5,
    flags: &[Flag::Write, Flag::Denyoom],
    categories: &[],
    keys: &[key_at(1, Access::Overwrite, &["update"]), key_at(2, Access::Read, &["access"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(zrangestore),
};

pub(super) const ZCOUNT: DataCommand = DataCommand {
    name: "zcount",
    since: "2.0.0",
    group: Group::SortedSet,
    summary: "Counts the members of a sorted set between two scores.",
    complexity: "O(log N)",
    syntax: "key min max",
    arity: 4,
    flags: &[Flag::Readonly, Flag::Fast],
    categories: &[],
    keys: &[key_at(1, Access::Read, &["access"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(zcount),
};

pub(super) const ZLEXCOUNT: DataCommand = DataCommand {
    name: "zlexcount",
    since: "2.8.9",
    group: Group::SortedSet,
    summary: "Counts the members between two names of a sorted set with equal scores.",
    complexity: "O(log N)",
    syntax: "key min max",
    arity: 4,
    flags: &[Flag::Readonly, Flag::Fast],
    categories: &[],
    keys: &[key_at(1, Access::Read, &["access"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(zlexcount),
};

/// By what a range is told.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Rank,
    Score,
    Name,
}

/// The place before the lowest score of a range, or behind the highest.
pub(super) fn score_cut(word: &[u8], is_lowest: bool) -> Result<Cut<'static>, Refusal> {
    let (is_open, word) = word.strip_prefix(b"(").map_or((false, word), |word| (true, word));
    let score = double::parse_bound(word).ok_or_else(|| Refusal::new("ERR min or max is not a float"))?;
    Ok(if is_open == is_lowest { Cut::BehindScore(score) } else { Cut::BeforeScore(score) })
}

/// The place before the first name of a range, or behind the last.
pub(super) fn name_cut(word: &[u8], is_lowest: bool) -> Result<Cut<'_>, Refusal> {
    match word {
        b"-" => Ok(Cut::Start),
        b"+" => Ok(Cut::End),
        [b'(', name @ ..] => Ok(if is_lowest { Cut::BehindName(name) } else { Cut::BeforeName(name) }),
        [b'[', name @ ..] => Ok(if is_lowest { Cut::BeforeName(name) } else { Cut::BehindName(name) }),
        _ => Err(Refusal::new("ERR min or max not valid string range item")),
    }
}

/// What is asked for.
struct Request<'a> {
    bounds: Bounds<'a>,
    is_reversed: bool,
    offset: i64,
    limit: i64,
    with_scores: bool,
}

enum Bounds<'a> {
    Ranks(i64, i64),
    Cuts(Cut<'a>, Cut<'a>),
}

impl<'a> Request<'a> {
    /// Reads the two ends, from the word `first` on, and the options behind them. What `by` and `is_reversed` say
    /// cannot be said again.
    fn parse(
        args: Args<'a>,
        first: usize,
        by: Option<By>,
        is_reversed: Option<bool>,
        is_stored: bool,
    ) -> Result<Self, Refusal> {
        let (mut by, mut is_reversed) = (by, is_reversed);
        let (mut offset, mut limit, mut with_scores) = (0, -1, false);
        let mut next = first + 2;
        while let Some(option) = args.get(next) {
            match () {
                () if !is_stored && is(option, "withscores") => with_scores = true,
                () if is(option, "limit") && next + 2 < args.len() => {
                    (offset, limit) = (integer(args.at(next + 1))?, integer(args.at(next + 2))?);
                    next += 2;
                }
                () if is_reversed.is_none() && is(option, "rev") => is_reversed = Some(true),
                () if by.is_none() && is(option, "byscore") => by = Some(By::Score),
                () if by.is_none() && is(option, "bylex") => by = Some(By::Name),
                () => return Err(Refusal::SYNTAX),
            }
            next += 1;
        }
        let (by, is_reversed) = (by.unwrap_or(By::Rank), is_reversed.unwrap_or(false));
        if limit != -1 && by == By::Rank {
            return Err(Refusal::new(
                "ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX",
            ));
        }
        if with_scores && by == By::Name {
            return Err(Refusal::new("ERR syntax error, WITHSCORES not supported in combination with BYLEX"));
        }
        let (low, high) = match (is_reversed, by) {
            (true, By::Score | By::Name) => (args.at(first + 1), args.at(first)),
            _ => (args.at(first), args.at(first + 1)),
        };
        let bounds = match by {
            By::Rank => Bounds::Ranks(integer(low)?, integer(high)?),
            By::Score => Bounds::Cuts(score_cut(low, true)?, score_cut(high, false)?),
            By::Name => Bounds::Cuts(name_cut(low, true)?, name_cut(high, false)?),
        };
        Ok(Self { bounds, is_reversed, offset, limit, with_scores })
    }

    /// The ranks of the members asked for.
    fn ranks(&self, set: SortedSet<'_>) -> Range<usize> {
        let (low, high) = match self.bounds {
            Bounds::Ranks(start, end) => {
                let len = set.len();
                let ranks = ranks_between(start, end, len);
                return if self.is_reversed { len - ranks.end..len - ranks.start } else { ranks };
            }
            Bounds::Cuts(low, high) => (low, high),
        };
        let Ok(offset) = usize::try_from(self.offset) else { return 0..0 };
        let found = set.between(low, high);
        let limit = usize::try_from(self.limit).unwrap_or(usize::MAX);
        if self.is_reversed {
            let end = found.end.saturating_sub(offset).max(found.start);
            end.saturating_sub(limit).max(found.start)..end
        } else {
            let start = found.start.saturating_add(offset).min(found.end);
            start..start.saturating_add(limit).min(found.end)
        }
    }

    fn members<'s>(&self, set: SortedSet<'s>, ranks: Range<usize>) -> Iter<'s> {
        if self.is_reversed { set.range_back(ranks) } else { set.range(ranks) }
    }

    fn answer(&self, view: &View<'_>, key: &[u8], writer: &mut Writer) -> Result<(), Refusal> {
        let Some(set) = view.sorted_set(key)? else {
            writer.array(0);
            return Ok(());
        };
        let ranks = self.ranks(set);
        write_members(writer, ranks.len(), self.members(set, ranks), self.with_scores);
        Ok(())
    }
}

fn zrange(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    Request::parse(args, 2, None, None, false)?.answer(view, args.at(1), writer)
}

fn zrevrange(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    Request::parse(args, 2, Some(By::Rank), Some(true), false)?.answer(view, args.at(1), writer)
}

fn zrangebyscore(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    Request::parse(args, 2, Some(By::Score), Some(false), false)?.answer(view, args.at(1), writer)
}

fn zrevrangebyscore(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    Request::parse(args, 2, Some(By::Score), Some(true), false)?.answer(view, args.at(1), writer)
}

fn zrangebylex(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    Request::parse(args, 2, Some(By::Name), Some(false), false)?.answer(view, args.at(1), writer)
}

fn zrevrangebylex(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    Request::parse(args, 2, Some(By::Name), Some(true), false)?.answer(view, args.at(1), writer)
}

fn zrangestore(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let request = Request::parse(args, 3, None, None, true)?;
    let found: Vec<(Vec<u8>, f64)> = match edit.reading().sorted_set(args.at(2))? {
        Some(set) => {
            let ranks = request.ranks(set);
            set.range(ranks).map(|(member, score)| (member.to_vec(), score)).collect()
        }
        None => Vec::new(),
    };
    super::combine::store(edit, args.at(1), &found, "zrangestore", writer);
    Ok(())
}

fn zcount(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let (low, high) = (score_cut(args.at(2), true)?, score_cut(args.at(3), false)?);
    writer.count(view.sorted_set(args.at(1))?.map_or(0, |set| set.between(low, high).len()));
    Ok(())
}

fn zlexcount(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let (low, high) = (name_cut(args.at(2), true)?, name_cut(args.at(3), false)?);
    writer.count(view.sorted_set(args.at(1))?.map_or(0, |set| set.between(low, high).len()));
    Ok(())
}
