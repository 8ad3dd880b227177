//! ZRANDMEMBER: members chosen by chance.

use command::{Access, Flag, Group, Refusal, Span};
use resp::{Args, Writer};

use super::write_members;
use crate::View;
use crate::commands::arguments::{is, out_of_range};
use crate::commands::key_specs::key_at;
use crate::commands::sample::{Count, distinct_ranks};
use crate::commands::{Body, DataCommand};

pub(super) const ZRANDMEMBER: DataCommand = DataCommand {
    name: "zrandmember",
    since: "6.2.0",
    group: Group::SortedSet,
    summary: "Returns random members of a sorted set.",
    complexity: "O(M log N) with M the number of members returned.",
    syntax: "key [count [WITHSCORES]]",
    arity: -2,
    flags: &[Flag::Readonly],
    categories: &[],
    keys: &[key_at(1, Access::Read, &["access"])],
    tips: &["nondeterministic_output"],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(zrandmember),
};

fn zrandmember(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let Some(word) = args.get(2) else {
        let chosen = view.sorted_set(args.at(1))?.map(|set| set.nth(view.prng().below(set.len() as u64) as usize));
        writer.bulk_or_null(chosen.map(|(member, _)| member));
        return Ok(());
    };
    let count = Count::parse(word)?;
    let with_scores = match args.get(3) {
        None => false,
        Some(option) if is(option, "withscores") && args.len() == 4 => true,
        Some(_) => return Err(Refusal::SYNTAX),
    };
    // Twice as many words must be a number, too.
    let half = i64::MAX / 2;
    if with_scores && matches!(count, Count::Distinct(count) if count as u64 > half as u64) {
        return Err(out_of_range(-half, half));
    }
    let Some(set) = view.sorted_set(args.at(1))? else {
        writer.array(0);
        return Ok(());
    };
    let mut prng = view.prng();
    let len = set.len();
    match count {
        Count::Distinct(count) if count >= len => write_members(writer, len, set.iter(), with_scores),
        Count::Distinct(count) => {
            let ranks = distinct_ranks(&mut prng, len, count);
            if set.is_packed() {
                let chosen = set.iter().enumerate().filter(|(rank, _)| ranks.contains(rank)).map(|(_, pair)| pair);
                write_members(writer, count, chosen, with_scores);
            } else {
                write_members(writer, count, ranks.into_iter().map(|rank| set.nth(rank)), with_scores);
            }
        }
        Count::Repeated(count) => {
            // Packed members are quick to find only one behind the other.
            let packed: Vec<_> = if set.is_packed() { set.iter().collect() } else { Vec::new() };
            let mut draw = || {
                let rank = prng.below(len as u64) as usize;
                packed.get(rank).copied().unwrap_or_else(|| set.nth(rank))
            };
            write_members(writer, count, (0..count).map(|_| draw()), with_scores);
        }
    }
    Ok(())
}
