//! Lists of the items that were seen most often.

use command::{Group, Refusal};
use resp::{Args, Writer};

use super::{CHANGED_KEY, GROWING, MADE_KEY, PLAIN, at_most, double, find_as, write_double};
use crate::commands::arguments::{is, parse_integer};
use crate::commands::{Body, DataCommand};
use crate::sketch::Sketch;
use crate::sketch::top_k::{Powers, TopK};
use crate::{Edit, Keyspace, View};

pub(super) const COMMANDS: &[&DataCommand] = &[&RESERVE, &ADD, &INCRBY, &QUERY, &COUNT, &LIST, &INFO];

const READING: DataCommand = DataCommand { since: "2.0.0", group: Group::TopK, ..PLAIN };
const CHANGING: DataCommand = DataCommand { flags: GROWING, keys: CHANGED_KEY, ..READING };

/// Most by which a count is raised at once: each may be a step of a decay.
const INCREMENT_MAX: i64 = 100_000;

find_as!(list, TopK, TopK);

fn no_key() -> Refusal {
    Refusal::new("TopK: key does not exist")
}

const RESERVE: DataCommand = DataCommand {
    name: "topk.reserve",
    summary: "Creates an empty list of the items that are seen most often.",
    syntax: "key topk [width depth decay]",
    arity: -3,
    keys: MADE_KEY,
    body: Body::Mutate(reserve),
    ..CHANGING
};

fn reserve(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    if args.len() != 3 && args.len() != 6 {
        return Err(Refusal::wrong_arity("topk.reserve"));
    }
    if edit.contains(args.at(1)) {
        return Err(Refusal::new("TopK: key already exists"));
    }
    let size = |at, complaint| {
        let size = parse_integer(args.at(at)).and_then(|size| u32::try_from(size).ok()).filter(|&size| size > 0);
        size.ok_or(Refusal::new(complaint))
    };
    let k = size(2, "TopK: invalid k")?;
    let (mut width, mut depth, mut decay) = (8, 7, 0.9);
    if args.len() == 6 {
        width = size(3, "TopK: invalid width")?;
        depth = size(4, "TopK: invalid depth")?;
        const COMPLAINT: &str = "TopK: invalid decay value. must be '<= 1' & '> 0'";
        decay = double(args.at(5), COMPLAINT)?;
        if !(decay > 0.0 && decay <= 1.0) {
            return Err(Refusal::new(COMPLAINT));
        }
    }
    let list = TopK::new(k, width, depth, decay);
    let list = list.ok_or(Refusal::new("ERR Insufficient memory to create topk data structure"))?;
    edit.set_sketch(args.at(1), Sketch::TopK(list))?;
    writer.ok();
    Ok(())
}

const ADD: DataCommand = DataCommand {
    name: "topk.add",
    summary: "Counts items, and returns which ones they push out of the list.",
    complexity: "O(n * k) where n is the number of items and k is the length of the list.",
    syntax: "key items [items ...]",
    arity: -3,
    body: Body::Mutate(|edit, args, writer| {
        let counts: Vec<_> = args.iter().skip(2).map(|item| (item, 1)).collect();
        add(edit, args.at(1), &counts, writer)
    }),
    ..CHANGING
};

const INCRBY: DataCommand = DataCommand {
    name: "topk.incrby",
    summary: "Counts items by increments, and returns which ones they push out of the list.",
    complexity: "O(n * k * i) where n is the number of items, k is the length of the list and i the increment.",
    syntax: "key item increment [item increment ...]",
    arity: -4,
    body: Body::Mutate(|edit, args, writer| {
        if args.len() % 2 == 1 {
            return Err(Refusal::wrong_arity("topk.incrby"));
        }
        list(&edit.view(), args.at(1))?.ok_or_else(no_key)?;
        let complaint = "TopK: increment must be an integer greater or equal to 0 and smaller or equal to 100,000";
        let mut counts = Vec::new();
        for at in (2..args.len()).step_by(2) {
            let count = parse_integer(args.at(at + 1)).filter(|count| (0..=INCREMENT_MAX).contains(count));
            counts.push((args.at(at), count.ok_or(Refusal::new(complaint))? as u32));
        }
        add(edit, args.at(1), &counts, writer)
    }),
    ..CHANGING
};

fn add(edit: &mut Edit<'_>, key: &[u8], counts: &[(&[u8], u32)], writer: &mut Writer) -> Result<(), Refusal> {
    let view = edit.view();
    let list = list(&view, key)?.ok_or_else(no_key)?;
    // What is there decides on chance, too, so that a script that adds twice does not meet the same chance again.
    let seen = list.heap().iter().fold(0u64, |sum, place| sum.wrapping_add(place.count.into()));
    let powers = Powers::new(list.decay);
    drop(list);
    let mut prng = Keyspace::prng_to_take(edit.moment(), key, seen as usize);
    let driven_out = edit.change_sketch(key, |sketch| match sketch {
        Sketch::TopK(list) => counts.iter().map(|(item, count)| list.add(item, *count, &powers, &mut prng)).collect(),
        _ => Vec::new(),
    })?;
    writer.array(driven_out.len());
    driven_out.iter().for_each(|item| writer.bulk_or_null(item.as_deref()));
    Ok(())
}

const QUERY: DataCommand = DataCommand {
    name: "topk.query",
    summary: "Returns which items are in the list.",
    complexity: "O(n * k) where n is the number of items and k is the length of the list.",
    syntax: "key item [item ...]",
    arity: -3,
    body: Body::Query(|view, args, writer| {
        let list = list(view, args.at(1))?.ok_or_else(no_key)?;
        writer.array(args.len() - 2);
        args.iter().skip(2).for_each(|item| writer.boolean(list.contains(item)));
        Ok(())
    }),
    ..READING
};

const COUNT: DataCommand = DataCommand {
    name: "topk.count",
    summary: "Returns how often items were seen, or less.",
    body: Body::Query(|view, args, writer| {
        let list = list(view, args.at(1))?.ok_or_else(no_key)?;
        writer.array(args.len() - 2);
        args.iter().skip(2).for_each(|item| writer.integer(list.count(item).into()));
        Ok(())
    }),
    ..QUERY
};

const LIST: DataCommand = DataCommand {
    name: "topk.list",
    summary: "Returns the items that were seen most often.",
    complexity: "O(k * log k) where k is the length of the list.",
    syntax: "key [WITHCOUNT]",
    arity: -2,
    body: Body::Query(|view, args, writer| {
        at_most(args, 3, "topk.list")?;
        if args.get(2).is_some_and(|word| !is(word, "withcount")) {
            return Err(Refusal::new("WITHCOUNT keyword expected"));
        }
        let with_count = args.len() == 3;
        let list = list(view, args.at(1))?.ok_or_else(no_key)?;
        let places = list.list();
        writer.array(places.len() * (1 + usize::from(with_count)));
        for place in places {
            writer.bulk(place.item.as_deref().unwrap_or_default());
            if with_count {
                writer.integer(place.count.into());
            }
        }
        Ok(())
    }),
    ..READING
};

const INFO: DataCommand = DataCommand {
    name: "topk.info",
    summary: "Describes a list of the items that were seen most often.",
    body: Body::Query(|view, args, writer| {
        let list = list(view, args.at(1))?.ok_or_else(no_key)?;
        writer.map(4);
        for (name, value) in [("k", list.k), ("width", list.width), ("depth", list.depth)] {
            writer.simple(name);
            writer.integer(value.into());
        }
        writer.simple("decay");
        write_double(writer, list.decay);
        Ok(())
    }),
    ..READING
};
