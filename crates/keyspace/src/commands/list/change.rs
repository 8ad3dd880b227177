//! Changing what lies inside a list.

use command::{Access, Flag, Group, Refusal, Span};
use resp::{Args, Writer};

use crate::commands::arguments::{integer, is, ranks_between};
use crate::commands::key_specs::key_at;
use crate::commands::{Body, DataCommand};
use crate::{Class, Edit};

pub(super) const LINSERT: DataCommand = DataCommand {
    name: "linsert",
    since: "2.2.0",
    group: Group::List,
    summary: "Inserts an item before or after the first one that equals a text.",
    complexity: "O(N)",
    syntax: "key <BEFORE | AFTER> pivot element",
    arity: 5,
    flags: &[Flag::Write, Flag::Denyoom],
    categories: &[],
    keys: &[key_at(1, Access::ReadWrite, &["insert"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(linsert),
};

pub(super) const LSET: DataCommand = DataCommand {
    name: "lset",
    since: "1.0.0",
    group: Group::List,
    summary: "Replaces the item at an index.",
    complexity: "O(log N), and O(1) at the ends.",
    syntax: "key index element",
    arity: 4,
    flags: &[Flag::Write, Flag::Denyoom],
    categories: &[],
    keys: &[key_at(1, Access::ReadWrite, &["update"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(lset),
};

pub(super) const LREM: DataCommand = DataCommand {
    name: "lrem",
    since: "1.0.0",
    group: Group::List,
    summary: "Removes items that equal a text.",
    complexity: "O(N+M) with M the number of items taken out.",
    syntax: "key count element",
    arity: 4,
    flags: &[Flag::Write],
    categories: &[],
    keys: &[key_at(1, Access::ReadWrite, &["delete"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(lrem),
};

pub(super) const LTRIM: DataCommand = DataCommand {
    name: "ltrim",
    since: "1.0.0",
    group: Group::List,
    summary: "Trims a list to the items between two indexes.",
    complexity: "O(log N); what is taken out is freed later.",
    syntax: "key start stop",
    arity: 4,
    flags: &[Flag::Write],
    categories: &[],
    keys: &[key_at(1, Access::ReadWrite, &["delete"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(ltrim),
};

fn linsert(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let key = args.at(1);
    let behind = match args.at(2) {
        word if is(word, "before") => 0,
        word if is(word, "after") => 1,
        _ => return Err(Refusal::SYNTAX),
    };
    if edit.view().list(key)?.is_none() {
        writer.integer(0);
        return Ok(());
    }
    let len = edit.modify_list(key, |list| {
        let index = list.as_ref().iter().position(|item| item == args.at(3))?;
        list.insert(index + behind, args.at(4));
        Some(list.as_ref().len())
    })?;
    match len {
        Some(len) => {
            writer.count(len);
            edit.notify(Class::List, "linsert", key);
        }
        None => writer.integer(-1),
    }
    Ok(())
}

fn lset(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let key = args.at(1);
    let len = edit.view().list(key)?.ok_or(Refusal::NO_SUCH_KEY)?.len();
    let index = super::index(args.at(2), len)?.ok_or(Refusal::INDEX_OUT_OF_RANGE)?;
    edit.modify_list(key, |list| list.set(index, args.at(3)))?;
    writer.ok();
    edit.notify(Class::List, "lset", key);
    Ok(())
}

fn lrem(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let (key, element) = (args.at(1), args.at(3));
    let count = integer(args.at(2))?;
    let wanted = if count == 0 { usize::MAX } else { count.unsigned_abs() as usize };
    let (removed, left) = edit.modify_list(key, |list| {
        let found = list.as_ref();
        let len = found.len();
        let mut indexes: Vec<usize> = if count >= 0 {
            found.iter().enumerate().filter(|(_, item)| *item == element).map(|(index, _)| index).take(wanted).collect()
        } else {
            let items = found.iter_back_from(len).enumerate().filter(|(_, item)| *item == element);
            items.map(|(index, _)| len - 1 - index).take(wanted).collect()
        };
        indexes.sort_unstable();
        list.remove_each(&indexes);
        (indexes.len(), len - indexes.len())
    })?;
    writer.count(removed);
    if removed > 0 {
        edit.notify(Class::List, "lrem", key);
        if left == 0 {
            edit.notify(Class::Generic, "del", key);
        }
    }
    Ok(())
}

fn ltrim(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let (start, end) = (integer(args.at(2))?, integer(args.at(3))?);
    let key = args.at(1);
    let left = edit.modify_list(key, |list| {
        let len = list.as_ref().len();
        let kept = ranks_between(start, end, len);
        list.remove_range(kept.end..len);
        list.remove_range(0..kept.start);
        (len > 0).then(|| kept.len())
    })?;
    writer.ok();
    if let Some(left) = left {
        edit.notify(Class::List, "ltrim", key);
        if left == 0 {
            edit.notify(Class::Generic, "del", key);
        }
    }
    Ok(())
}
