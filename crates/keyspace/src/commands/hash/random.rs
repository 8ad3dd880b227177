//! HRANDFIELD: fields chosen by chance.

use command::{Access, Flag, Group, Refusal, Span};
use resp::{Args, Protocol, Writer};

use crate::commands::arguments::is;
use crate::commands::sample::{Count, distinct_ranks};
use crate::commands::string::first_key;
use crate::commands::{Body, DataCommand};
use crate::{Hash, View};

pub(super) const HRANDFIELD: DataCommand = DataCommand {
    name: "hrandfield",
    since: "6.2.0",
    group: Group::Hash,
    summary: "Returns random fields, and their values on request.",
    complexity: "O(N) where N is the number of fields returned.",
    syntax: "key [count [WITHVALUES]]",
    arity: -2,
    flags: &[Flag::Readonly],
    categories: &[],
    keys: &[first_key(Access::Read, &["access"])],
    tips: &["nondeterministic_output"],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(hrandfield),
};
fn hrandfield(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let Some(word) = args.get(2) else {
        let hash = view.hash(args.at(1))?;
        let nth = |hash: Hash<'_>| view.prng().below(hash.len() as u64) as usize;
        writer.bulk_or_null(hash.map(|hash| hash.nth(nth(hash)).0));
        return Ok(());
    };
    let count = Count::parse(word)?;
    let with_values = match args.get(3) {
        None => false,
        Some(option) if is(option, "withvalues") && args.len() == 4 => true,
        Some(_) => return Err(Refusal::SYNTAX),
    };
    // Twice as many words must be a number, too.
    if with_values && matches!(count, Count::Distinct(count) if count > i64::MAX as usize / 2) {
        return Err(Refusal::new("ERR value is out of range"));
    }
    let Some(hash) = view.hash(args.at(1))? else {
        writer.array(0);
        return Ok(());
    };
    let mut list = List { writer, with_values };
    match count {
        Count::Distinct(count) if count >= hash.len() => {
            list.announce(hash.len());
            hash.iter().for_each(|pair| list.push(pair));
        }
        Count::Distinct(count) => {
            let ranks = distinct_ranks(&mut view.prng(), hash.len(), count);
            list.announce(count);
            if !hash.has_quick_ranks() {
                let chosen = hash.iter().enumerate().filter(|(rank, _)| ranks.contains(rank));
                chosen.for_each(|(_, pair)| list.push(pair));
            } else {
                ranks.into_iter().for_each(|rank| list.push(hash.nth(rank)));
            }
        }
        Count::Repeated(count) => {
            let mut prng = view.prng();
            list.announce(count);
            // Packed pairs are quick to find only one behind the other, and so are pairs among which some have expired.
            let pairs: Vec<_> = if hash.has_quick_ranks() { Vec::new() } else { hash.iter().collect() };
            let len = hash.len() as u64;
            for _ in 0..count {
                let rank = prng.below(len) as usize;
                list.push(pairs.get(rank).copied().unwrap_or_else(|| hash.nth(rank)));
            }
        }
    }
    Ok(())
}

/// The reply: fields, or pairs in a row, which RESP3 keeps together.
struct List<'w> {
    writer: &'w mut Writer,
    with_values: bool,
}

impl List<'_> {
    fn announce(&mut self, count: usize) {
        let is_flat = self.with_values && self.writer.protocol() == Protocol::Resp2;
        self.writer.array(if is_flat { 2 * count } else { count });
    }

    fn push(&mut self, (field, value): (&[u8], &[u8])) {
        if self.with_values && self.writer.protocol() == Protocol::Resp3 {
            self.writer.array(2);
        }
        self.writer.bulk(field);
        if self.with_values {
            self.writer.bulk(value);
        }
    }
}
