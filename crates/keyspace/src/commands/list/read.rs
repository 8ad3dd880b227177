//! Looking at lists.

use command::{Access, Flag, Group, Refusal, Span};
use resp::{Args, Writer};

use crate::View;
use crate::commands::arguments::{at_least, integer, is, ranks_between};
use crate::commands::key_specs::key_at;
use crate::commands::{Body, DataCommand};

pub(super) const LLEN: DataCommand = DataCommand {
    name: "llen",
    since: "1.0.0",
    group: Group::List,
    summary: "Returns how many items a list has.",
    complexity: "O(1)",
    syntax: "key",
    arity: 2,
    flags: &[Flag::Readonly, Flag::Fast],
    categories: &[],
    keys: &[key_at(1, Access::Read, &[])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(llen),
};

pub(super) const LINDEX: DataCommand = DataCommand {
    name: "lindex",
    since: "1.0.0",
    group: Group::List,
    summary: "Returns the item at an index.",
    complexity: "O(log N), and O(1) at the ends.",
    syntax: "key index",
    arity: 3,
    flags: &[Flag::Readonly],
    categories: &[],
    keys: &[key_at(1, Access::Read, &["access"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(lindex),
};

pub(super) const LRANGE: DataCommand = DataCommand {
    name: "lrange",
    since: "1.0.0",
    group: Group::List,
    summary: "Returns the items between two indexes.",
    complexity: "O(log(N)+M) with M the number of items returned.",
    syntax: "key start stop",
    arity: 4,
    flags: &[Flag::Readonly],
    categories: &[],
    keys: &[key_at(1, Access::Read, &["access"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(lrange),
};

pub(super) const LPOS: DataCommand = DataCommand {
    name: "lpos",
    since: "6.0.6",
    group: Group::List,
    summary: "Finds the indexes of items that equal a text.",
    complexity: "O(N)",
    syntax: "key element [RANK rank] [COUNT num-matches] [MAXLEN len]",
    arity: -3,
    flags: &[Flag::Readonly],
    categories: &[],
    keys: &[key_at(1, Access::Read, &["access"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(lpos),
};

fn llen(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    writer.count(view.list(args.at(1))?.map_or(0, |list| list.len()));
    Ok(())
}

fn lindex(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let item = match view.list(args.at(1))? {
        Some(list) => super::index(args.at(2), list.len())?.and_then(|index| list.get(index)),
        None => None,
    };
    writer.bulk_or_null(item);
    Ok(())
}

fn lrange(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let (start, end) = (integer(args.at(2))?, integer(args.at(3))?);
    let Some(list) = view.list(args.at(1))? else {
        writer.array(0);
        return Ok(());
    };
    let indexes = ranks_between(start, end, list.len());
    writer.array(indexes.len());
    list.iter_from(indexes.start).take(indexes.len()).for_each(|item| writer.bulk(item));
    Ok(())
}

fn lpos(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let (mut rank, mut count, mut depth) = (1i64, None, 0);
    let mut options = args.from(3).iter();
    while let Some(option) = options.next() {
        let Some(word) = options.next() else { return Err(Refusal::SYNTAX) };
        match () {
            () if is(option, "rank") => {
                rank = integer(word)?;
                if rank == 0 {
                    return Err(Refusal::new(
                        "ERR RANK can't be zero: use 1 to start from the first match, 2 from the second ... or use \
                         negative to start from the end of the list",
                    ));
                }
            }
            () if is(option, "count") => count = Some(at_least(0, word, "ERR COUNT can't be negative")?),
            () if is(option, "maxlen") => depth = at_least(0, word, "ERR MAXLEN can't be negative")?,
            () => return Err(Refusal::SYNTAX),
        }
    }
    let Some(list) = view.list(args.at(1))? else {
        match count {
            Some(_) => writer.array(0),
            None => writer.null(),
        }
        return Ok(());
    };
    let len = list.len();
    let depth = if depth == 0 { len } else { depth.min(len) };
    let skipped = rank.unsigned_abs() as usize - 1;
    let wanted = match count {
        None => 1,
        Some(0) => usize::MAX,
        Some(count) => count,
    };
    let element = args.at(2);
    let matches = |(_, item): &(usize, &[u8])| *item == element;
    let found: Vec<usize> = if rank > 0 {
        let items = list.iter().take(depth).enumerate();
        items.filter(matches).map(|(index, _)| index).skip(skipped).take(wanted).collect()
    } else {
        let items = list.iter_back_from(len).take(depth).enumerate();
        items.filter(matches).map(|(index, _)| len - 1 - index).skip(skipped).take(wanted).collect()
    };
    match (count, found.first()) {
        (Some(_), _) => {
            writer.array(found.len());
            found.iter().for_each(|&index| writer.count(index));
        }
        (None, Some(&index)) => writer.count(index),
        (None, None) => writer.null(),
    }
    Ok(())
}
