//! SPOP and SRANDMEMBER: members chosen by chance.

use command::{Access, Flag, Group, Refusal, Span};
use resp::{Args, Writer};

use crate::commands::arguments::parse_integer;
use crate::commands::sample::{Count, distinct_ranks};
use crate::commands::string::first_key;
use crate::commands::{Body, DataCommand};
use crate::{Class, Edit, Keyspace, View};

pub(super) const SPOP: DataCommand = DataCommand {
    name: "spop",
    since: "1.0.0",
    group: Group::Set,
    summary: "Removes and returns random members of a set.",
    complexity: "O(N) where N is the number of members taken.",
    syntax: "key [count]",
    arity: -2,
    flags: &[Flag::Write, Flag::Fast],
    categories: &[],
    keys: &[first_key(Access::ReadWrite, &["access", "delete"])],
    tips: &["nondeterministic_output"],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(spop),
};
fn spop(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let key = args.at(1);
    let moment = edit.view().moment();
    let Some(word) = args.get(2) else {
        let is_there = edit.modify_set(key, |set| {
            let len = set.as_ref().len();
            if len > 0 {
                let rank = Keyspace::prng_to_take(moment, key, len).below(len as u64) as usize;
                set.as_ref().nth(rank).write_bulk(writer);
                set.remove_nth(rank);
            }
            len > 0
        })?;
        if is_there {
            edit.notify_taken(Class::Set, "spop", key);
        } else {
            writer.null();
        }
        return Ok(());
    };
    if args.len() > 3 {
        return Err(Refusal::SYNTAX);
    }
    let count = parse_integer(word).and_then(|count| usize::try_from(count).ok());
    let count = count.ok_or_else(|| Refusal::new("ERR value is out of range, must be positive"))?;
    let Some(set) = edit.view().set(key)? else {
        writer.set(0);
        return Ok(());
    };
    if count >= set.len() {
        writer.set(set.len());
        set.iter().for_each(|member| member.write_bulk(writer));
        edit.remove(key);
        edit.notify_taken(Class::Set, "spop", key);
        return Ok(());
    }
    writer.set(count);
    edit.modify_set(key, |set| {
        let len = set.as_ref().len();
        let mut prng = Keyspace::prng_to_take(moment, key, len);
        // From the last on, so that the ranks of those before it stay what they are.
        for rank in distinct_ranks(&mut prng, len, count).into_iter().rev() {
            set.as_ref().nth(rank).write_bulk(writer);
            set.remove_nth(rank);
        }
    })?;
    if count > 0 {
        edit.notify_taken(Class::Set, "spop", key);
    }
    Ok(())
}

pub(super) const SRANDMEMBER: DataCommand = DataCommand {
    name: "srandmember",
    since: "1.0.0",
    group: Group::Set,
    summary: "Returns random members of a set.",
    complexity: "O(N) where N is the number of members returned.",
    syntax: "key [count]",
    arity: -2,
    flags: &[Flag::Readonly],
    categories: &[],
    keys: &[first_key(Access::Read, &["access"])],
    tips: &["nondeterministic_output"],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(srandmember),
};
fn srandmember(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let Some(word) = args.get(2) else {
        match view.set(args.at(1))? {
            Some(set) => set.nth(view.prng().below(set.len() as u64) as usize).write_bulk(writer),
            None => writer.null(),
        }
        return Ok(());
    };
    if args.len() > 3 {
        return Err(Refusal::SYNTAX);
    }
    let count = Count::parse(word)?;
    let Some(set) = view.set(args.at(1))? else {
        writer.array(0);
        return Ok(());
    };
    let mut prng = view.prng();
    match count {
        Count::Distinct(0) => writer.array(0),
        Count::Distinct(count) if count >= set.len() => {
            // All of them are a set to RESP3, some are not.
            writer.set(set.len());
            set.iter().for_each(|member| member.write_bulk(writer));
        }
        Count::Distinct(count) => {
            writer.array(count);
            let ranks = distinct_ranks(&mut prng, set.len(), count);
            ranks.into_iter().for_each(|rank| set.nth(rank).write_bulk(writer));
        }
        Count::Repeated(count) => {
            writer.array(count);
            let len = set.len() as u64;
            (0..count).for_each(|_| set.nth(prng.below(len) as usize).write_bulk(writer));
        }
    }
    Ok(())
}
