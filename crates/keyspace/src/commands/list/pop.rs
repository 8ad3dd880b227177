//! Taking items from the ends of lists, and moving them.
//!
//! Whatever else takes items from lists, such as a client that has waited for one, does it with the functions here.

use command::{Access, Flag, Group, Refusal, Span};
use resp::{Args, Writer};

use super::push::push_event;
use crate::collection::list::ListMut;
use crate::commands::arguments::{at_least, is};
use crate::commands::key_specs::{counted_keys, key_at};
use crate::commands::{Body, DataCommand};
use crate::{Class, Edit, End};

pub(super) const LPOP: DataCommand = DataCommand {
    name: "lpop",
    since: "1.0.0",
    group: Group::List,
    summary: "Takes items from the head of a list.",
    complexity: "O(N) with N the number of items taken.",
    syntax: "key [count]",
    arity: -2,
    flags: &[Flag::Write, Flag::Fast],
    categories: &[],
    keys: &[key_at(1, Access::ReadWrite, &["access", "delete"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(lpop),
};

pub(super) const RPOP: DataCommand = DataCommand {
    name: "rpop",
    since: "1.0.0",
    group: Group::List,
    summary: "Takes items from the tail of a list.",
    complexity: "O(N) with N the number of items taken.",
    syntax: "key [count]",
    arity: -2,
    flags: &[Flag::Write, Flag::Fast],
    categories: &[],
    keys: &[key_at(1, Access::ReadWrite, &["access", "delete"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(rpop),
};

pub(super) const LMPOP: DataCommand = DataCommand {
    name: "lmpop",
    since: "7.0.0",
    group: Group::List,
    summary: "Takes items from an end of the first of several lists that has any.",
    complexity: "O(N+M) with N the number of keys and M that of the items taken.",
    syntax: "numkeys key [key ...] <LEFT | RIGHT> [COUNT count]",
    arity: -4,
    flags: &[Flag::Write, Flag::MovableKeys],
    categories: &[],
    keys: &[counted_keys(1, Access::ReadWrite, &["access", "delete"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(lmpop),
};

pub(super) const LMOVE: DataCommand = DataCommand {
    name: "lmove",
    since: "6.2.0",
    group: Group::List,
    summary: "Moves an item from an end of a list to an end of another.",
    complexity: "O(1)",
    syntax: "source destination <LEFT | RIGHT> <LEFT | RIGHT>",
    arity: 5,
    flags: &[Flag::Write, Flag::Denyoom],
    categories: &[],
    keys: &[key_at(1, Access::ReadWrite, &["access", "delete"]), key_at(2, Access::ReadWrite, &["insert"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(lmove),
};

pub(super) const LMOVEM: DataCommand = DataCommand {
    name: "lmovem",
    since: "8.10.0",
    summary: "Moves items from an end of a list to an end of another.",
    complexity: "O(N) with N the number of items moved.",
    syntax: "source destination <LEFT | RIGHT> <LEFT | RIGHT> [<COUNT count | EXACTLY exactly> <OBO | BULK>]",
    arity: -5,
    body: Body::Mutate(lmovem),
    ..LMOVE
};

pub(super) const RPOPLPUSH: DataCommand = DataCommand {
    name: "rpoplpush",
    since: "1.2.0",
    group: Group::List,
    summary: "Moves the item at the tail of a list to the head of another.",
    complexity: "O(1)",
    syntax: "source destination",
    arity: 3,
    flags: &[Flag::Write, Flag::Denyoom],
    categories: &[],
    keys: &[key_at(1, Access::ReadWrite, &["access", "delete"]), key_at(2, Access::ReadWrite, &["insert"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(rpoplpush),
};

/// A count that is no count.
const OUT_OF_RANGE: &str = "ERR value is out of range, must be positive";

fn lpop(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    pop(edit, args, End::Left, writer)
}

fn rpop(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    pop(edit, args, End::Right, writer)
}

fn pop(edit: &mut Edit<'_>, args: Args<'_>, end: End, writer: &mut Writer) -> Result<(), Refusal> {
    let (key, name) = (args.at(1), pop_event(end));
    if args.len() > 3 {
        return Err(Refusal::wrong_arity(name));
    }
    let Some(word) = args.get(2) else {
        if !pop_one(edit, key, end, writer)? {
            writer.null();
        }
        return Ok(());
    };
    let count = at_least(0, word, OUT_OF_RANGE)?;
    if edit.view().list(key)?.is_none() {
        writer.null_array();
    } else if count == 0 {
        writer.array(0);
    } else {
        pop_several(edit, key, end, count, writer)?;
    }
    Ok(())
}

/// Takes the item at an end of a list and writes it. False, with nothing written, if there is no such list.
pub(super) fn pop_one(edit: &mut Edit<'_>, key: &[u8], end: End, writer: &mut Writer) -> Result<bool, Refusal> {
    let left = edit.modify_list(key, |list| {
        list.pop_with(end, |item| writer.bulk(item))?;
        Some(list.as_ref().len())
    })?;
    let Some(left) = left else { return Ok(false) };
    report_pop(edit, key, end, left);
    Ok(true)
}

/// Takes up to `count` items, at least one, from an end of a list, and writes them as an array. False, with nothing
/// written, if there is no such list.
pub(super) fn pop_several(
    edit: &mut Edit<'_>,
    key: &[u8],
    end: End,
    count: usize,
    writer: &mut Writer,
) -> Result<bool, Refusal> {
    let left = edit.modify_list(key, |list| {
        let len = list.as_ref().len();
        if len == 0 {
            return None;
        }
        let count = count.min(len);
        writer.array(count);
        match end {
            End::Left => {
                list.as_ref().iter().take(count).for_each(|item| writer.bulk(item));
                list.remove_range(0..count);
            }
            End::Right => {
                list.as_ref().iter_back_from(len).take(count).for_each(|item| writer.bulk(item));
                list.remove_range(len - count..len);
            }
        }
        Some(len - count)
    })?;
    let Some(left) = left else { return Ok(false) };
    report_pop(edit, key, end, left);
    Ok(true)
}

/// Takes up to `count` items, at least one, from an end of the first of these lists that there is, and writes its key
/// and the items. False, with nothing written, if there is none.
pub(super) fn pop_from_first<'k>(
    edit: &mut Edit<'_>,
    mut keys: impl Iterator<Item = &'k [u8]>,
    end: End,
    count: usize,
    writer: &mut Writer,
) -> Result<bool, Refusal> {
    let mut found = None;
    for key in keys.by_ref() {
        if edit.view().list(key)?.is_some() {
            found = Some(key);
            break;
        }
    }
    let Some(key) = found else { return Ok(false) };
    writer.array(2);
    writer.bulk(key);
    pop_several(edit, key, end, count, writer)
}

fn report_pop(edit: &mut Edit<'_>, key: &[u8], end: End, left: usize) {
    edit.notify(Class::List, pop_event(end), key);
    if left == 0 {
        edit.notify(Class::Generic, "del", key);
    }
}

/// What is reported of a pop.
fn pop_event(end: End) -> &'static str {
    match end {
        End::Left => "lpop",
        End::Right => "rpop",
    }
}

fn lmpop(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let (key_count, end, count) = pop_arguments(args, 1)?;
    let keys = args.iter().skip(2).take(key_count);
    if !pop_from_first(edit, keys, end, count, writer)? {
        writer.null_array();
    }
    Ok(())
}

/// What LMPOP is told from the word `first` on: how many keys there are, an end, and how many items to take.
pub(super) fn pop_arguments(args: Args<'_>, first: usize) -> Result<(usize, End, usize), Refusal> {
    let key_count = at_least(1, args.at(first), "ERR numkeys should be greater than 0")?;
    let end_at = key_count.saturating_add(first + 1);
    let end = super::end(args.get(end_at).ok_or(Refusal::SYNTAX)?)?;
    let count = match (args.get(end_at + 1), args.get(end_at + 2), args.get(end_at + 3)) {
        (None, ..) => 1,
        (Some(word), Some(count), rest) if is(word, "count") => {
            let count = at_least(1, count, "ERR count should be greater than 0")?;
            if rest.is_some() {
                return Err(Refusal::SYNTAX);
            }
            count
        }
        _ => return Err(Refusal::SYNTAX),
    };
    Ok((key_count, end, count))
}

fn lmove(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let (from, to) = (super::end(args.at(3))?, super::end(args.at(4))?);
    if !move_item(edit, args.at(1), args.at(2), from, to, writer)? {
        writer.null();
    }
    Ok(())
}

fn rpoplpush(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    if !move_item(edit, args.at(1), args.at(2), End::Right, End::Left, writer)? {
        writer.null();
    }
    Ok(())
}

/// Moves an item from an end of one list to an end of another, and writes it. False, with nothing written, if the first
/// does not exist.
pub(super) fn move_item(
    edit: &mut Edit<'_>,
    source: &[u8],
    destination: &[u8],
    from: End,
    to: End,
    writer: &mut Writer,
) -> Result<bool, Refusal> {
    if edit.view().list(source)?.is_none() {
        return Ok(false);
    }
    let (item, left) = if source == destination {
        edit.modify_list(source, |list| {
            let len = list.as_ref().len();
            let index = |end| if end == End::Left { 0 } else { len - 1 };
            let item = list.as_ref().get(index(from)).expect("there is a list").to_vec();
            if from != to {
                // Never without items meanwhile.
                let at = if to == End::Left { 0 } else { len };
                list.insert(at, &item);
                let old = if from == End::Left { 0 } else { len };
                list.remove_range(old..old + 1);
            } else {
                list.set(index(from), &item);
            }
            (item, len)
        })?
    } else {
        edit.view().list(destination)?;
        let popped = edit.modify_list(source, |list| (list.pop(from), list.as_ref().len()))?;
        let (Some(item), left) = popped else { return Ok(false) };
        edit.modify_list(destination, |list| list.push(to, &item))?;
        (item, left)
    };
    edit.notify(Class::List, push_event(to), destination);
    writer.bulk(&item);
    report_pop(edit, source, from, left);
    Ok(true)
}

/// How many items are moved, and how they lie afterwards.
pub(super) struct Batch {
    count: usize,
    /// Fewer are not moved.
    is_exact: bool,
    /// One after the other, so that what was moved last lies outermost. Otherwise they keep their order.
    is_one_by_one: bool,
}

impl Batch {
    /// What LMOVEM is told from the word `first` on.
    pub(super) fn parse(args: Args<'_>, first: usize) -> Result<Self, Refusal> {
        let words = [0, 1, 2, 3].map(|nth| args.get(first + nth));
        let (how, count, order) = match words {
            [None, ..] => return Ok(Self { count: 1, is_exact: false, is_one_by_one: true }),
            [Some(how), Some(count), Some(order), None] => (how, count, order),
            _ => return Err(Refusal::SYNTAX),
        };
        let is_exact = is(how, "exactly");
        let is_one_by_one = is(order, "obo");
        if !is_exact && !is(how, "count") || !is_one_by_one && !is(order, "bulk") {
            return Err(Refusal::SYNTAX);
        }
        let count = at_least(1, count, "ERR count should be greater than 0")?;
        Ok(Self { count, is_exact, is_one_by_one })
    }
}

fn lmovem(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let (from, to) = (super::end(args.at(3))?, super::end(args.at(4))?);
    let batch = Batch::parse(args, 5)?;
    if !move_items(edit, args.at(1), args.at(2), (from, to), &batch, writer)? {
        writer.null_array();
    }
    Ok(())
}

/// Moves items from an end of one list to an end of another, and writes them as they lie there. False, with nothing
/// written, if there are none, or not enough.
pub(super) fn move_items(
    edit: &mut Edit<'_>,
    source: &[u8],
    destination: &[u8],
    (from, to): (End, End),
    batch: &Batch,
    writer: &mut Writer,
) -> Result<bool, Refusal> {
    let Some(list) = edit.view().list(source)? else { return Ok(false) };
    let len = list.len();
    if batch.is_exact && len < batch.count {
        return Ok(false);
    }
    let count = batch.count.min(len);
    let start = if from == End::Left { 0 } else { len - count };
    let mut items: Vec<Vec<u8>> = list.iter_from(start).take(count).map(<[u8]>::to_vec).collect();
    // One by one, and put where they were taken from, they come to lie the other way round.
    if batch.is_one_by_one && from == to {
        items.reverse();
    }
    edit.view().list(destination)?;
    let left = if source == destination {
        edit.modify_list(source, |list| {
            // Never without items meanwhile.
            put(list, to, &items);
            let old = if to == End::Left { start + count } else { start };
            list.remove_range(old..old + count);
        })?;
        len
    } else {
        edit.modify_list(source, |list| list.remove_range(start..start + count))?;
        edit.modify_list(destination, |list| put(list, to, &items))?;
        len - count
    };
    edit.notify(Class::List, push_event(to), destination);
    writer.array(count);
    items.iter().for_each(|item| writer.bulk(item));
    report_pop(edit, source, from, left);
    Ok(true)
}

/// Puts items at an end of a list, in their order.
fn put(list: &mut ListMut<'_, '_>, to: End, items: &[Vec<u8>]) {
    match to {
        End::Left => items.iter().rev().for_each(|item| list.push(to, item)),
        End::Right => items.iter().for_each(|item| list.push(to, item)),
    }
}
