//! Commands that look at vector sets and their elements.

use command::{Flag, Refusal};
use resp::{Args, Writer};

use super::{READING, element, write_double};
use crate::View;
use crate::commands::arguments::{is, parse_integer};
use crate::commands::sample::{Count, distinct_ranks};
use crate::commands::{Body, DataCommand};
use crate::vector::{Bound, VectorSet};

pub(super) const VCARD: DataCommand = DataCommand {
    name: "vcard",
    summary: "Returns the number of elements of a vector set.",
    body: Body::Query(|view, args, writer| {
        writer.count(view.vectors(args.at(1))?.map_or(0, VectorSet::len));
        Ok(())
    }),
    ..READING
};

pub(super) const VDIM: DataCommand = DataCommand {
    name: "vdim",
    summary: "Returns the number of dimensions of the vectors of a vector set.",
    body: Body::Query(|view, args, writer| {
        let set = view.vectors(args.at(1))?.ok_or(Refusal::new("ERR key does not exist"))?;
        writer.count(set.shape().dimensions as usize);
        Ok(())
    }),
    ..READING
};

pub(super) const VISMEMBER: DataCommand = DataCommand {
    name: "vismember",
    since: "8.2.0",
    summary: "Returns whether an element is in a vector set.",
    syntax: "key element",
    arity: 3,
    flags: &[Flag::Readonly],
    body: Body::Query(|view, args, writer| {
        writer.boolean(element(view, args)?.is_some());
        Ok(())
    }),
    ..READING
};

pub(super) const VGETATTR: DataCommand = DataCommand {
    name: "vgetattr",
    summary: "Returns the attributes of an element of a vector set.",
    syntax: "key element",
    arity: 3,
    body: Body::Query(|view, args, writer| {
        writer.bulk_or_null(element(view, args)?.and_then(|(set, slot)| set.body(slot).attributes()));
        Ok(())
    }),
    ..READING
};

pub(super) const VEMB: DataCommand = DataCommand {
    name: "vemb",
    summary: "Returns the vector of an element of a vector set, roughly, or as it is stored.",
    complexity: "O(N) where N is the number of dimensions.",
    syntax: "key element [RAW]",
    arity: -3,
    body: Body::Query(|view, args, writer| {
        let is_raw = args.len() > 3;
        if !args.iter().skip(3).all(|word| is(word, "raw")) {
            return Err(Refusal::new("ERR invalid option"));
        }
        let Some((set, slot)) = element(view, args)? else {
            writer.null();
            return Ok(());
        };
        if is_raw {
            write_raw(set, slot, writer);
        } else {
            let vector = set.vector(slot);
            writer.array(vector.len());
            vector.into_iter().for_each(|number| write_double(writer, number.into()));
        }
        Ok(())
    }),
    ..READING
};

fn write_raw(set: &VectorSet, slot: u32, writer: &mut Writer) {
    let (quantization, body) = (set.shape().quantization, set.body(slot));
    let has_range = quantization == crate::vector::measure::Quantization::Byte;
    writer.array(3 + usize::from(has_range));
    writer.simple(quantization.name());
    writer.bulk(body.direction().bytes);
    write_double(writer, body.length().into());
    if has_range {
        write_double(writer, body.direction().range.into());
    }
}

pub(super) const VLINKS: DataCommand = DataCommand {
    name: "vlinks",
    summary: "Returns the neighbours of an element on each layer of a vector set's graph, the highest first.",
    syntax: "key element [WITHSCORES]",
    arity: -3,
    body: Body::Query(|view, args, writer| {
        let with_scores = match args.len() {
            3 => false,
            4 if is(args.at(3), "withscores") => true,
            _ => return Err(Refusal::wrong_arity("vlinks")),
        };
        let Some((set, slot)) = element(view, args)? else {
            writer.null();
            return Ok(());
        };
        writer.array(set.level_of(slot) + 1);
        for layer in (0..=set.level_of(slot)).rev() {
            let links = set.links(slot, layer);
            if with_scores {
                writer.map(links.len())
            } else {
                writer.array(links.len())
            }
            for &link in links {
                writer.bulk(set.body(link).name());
                if with_scores {
                    write_double(writer, (1.0 - set.distance_between(slot, link) / 2.0).into());
                }
            }
        }
        Ok(())
    }),
    ..READING
};

pub(super) const VINFO: DataCommand = DataCommand {
    name: "vinfo",
    summary: "Describes a vector set.",
    body: Body::Query(|view, args, writer| {
        let Some(set) = view.vectors(args.at(1))? else {
            writer.null_array();
            return Ok(());
        };
        let shape = set.shape();
        writer.map(9);
        writer.simple("quant-type");
        writer.simple(shape.quantization.name());
        let numbers = [
            ("hnsw-m", shape.links.into()),
            ("vector-dim", shape.dimensions.into()),
            ("projection-input-dim", shape.given_dimensions.into()),
            ("size", set.len() as u64),
            ("max-level", set.level() as u64),
            ("attributes-count", set.attribute_count()),
            // Redis numbers the sets of a process; here one is the same on every replica.
            ("vset-uid", 0),
            ("hnsw-max-node-uid", set.last_id()),
        ];
        for (name, number) in numbers {
            writer.simple(name);
            writer.integer(number as i64);
        }
        Ok(())
    }),
    ..READING
};

pub(super) const VRANDMEMBER: DataCommand = DataCommand {
    name: "vrandmember",
    summary: "Returns random elements of a vector set.",
    complexity: "O(N) where N is the number of elements returned.",
    syntax: "key [count]",
    arity: -2,
    flags: &[Flag::Readonly],
    tips: &["nondeterministic_output"],
    body: Body::Query(choose),
    ..READING
};

fn choose(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    if args.len() > 3 {
        return Err(Refusal::wrong_arity("vrandmember"));
    }
    let count = match args.get(2) {
        None => None,
        Some(word) => {
            parse_integer(word).ok_or(Refusal::new("ERR COUNT value is not an integer"))?;
            Some(Count::parse(word)?)
        }
    };
    let mut prng = view.prng();
    match (view.vectors(args.at(1))?, count) {
        (None, None) => writer.null(),
        (None, Some(_)) => writer.array(0),
        (Some(set), None) => writer.bulk(set.body(prng.below(set.len() as u64) as u32).name()),
        (Some(set), Some(Count::Distinct(count))) => {
            let slots = distinct_ranks(&mut prng, set.len(), count);
            writer.array(slots.len());
            slots.into_iter().for_each(|slot| writer.bulk(set.body(slot as u32).name()));
        }
        (Some(set), Some(Count::Repeated(count))) => {
            writer.array(count);
            (0..count).for_each(|_| writer.bulk(set.body(prng.below(set.len() as u64) as u32).name()));
        }
    }
    Ok(())
}

pub(super) const VRANGE: DataCommand = DataCommand {
    name: "vrange",
    since: "8.4.0",
    summary: "Returns the elements of a vector set between two names, in their order.",
    complexity: "O(log(N)+M) where N is the number of elements of the set and M that of those returned.",
    syntax: "key start end [count]",
    arity: -4,
    flags: &[Flag::Readonly],
    body: Body::Query(range),
    ..READING
};

/// An end of a range as it is written.
fn bound(word: &[u8], is_start: bool) -> Option<Bound<'_>> {
    match word {
        b"-" => Some(Bound::Lowest),
        b"+" => Some(Bound::Highest),
        [b'[', name @ ..] if !name.is_empty() => Some(if is_start { Bound::From(name) } else { Bound::Behind(name) }),
        [b'(', name @ ..] if !name.is_empty() => Some(if is_start { Bound::Behind(name) } else { Bound::From(name) }),
        _ => None,
    }
}

fn range(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    if args.len() > 5 {
        return Err(Refusal::wrong_arity("vrange"));
    }
    let count = match args.get(4) {
        None => -1,
        Some(word) => parse_integer(word).ok_or(Refusal::new("ERR invalid COUNT value"))?,
    };
    let start = bound(args.at(2), true).ok_or(Refusal::new("ERR invalid start range format"))?;
    let end = bound(args.at(3), false).ok_or(Refusal::new("ERR invalid end range format"))?;
    if matches!(start, Bound::Highest) || matches!(end, Bound::Lowest) {
        return Err(Refusal::new("ERR '-' can only be used as first argument, '+' only as second"));
    }
    let Some(set) = view.vectors(args.at(1))? else {
        writer.array(0);
        return Ok(());
    };
    let names = set.range(start, end);
    // A count below zero is none.
    let most = usize::try_from(count).map_or(names.len(), |count| count.min(names.len()));
    writer.array(most);
    names.take(most).for_each(|name| writer.bulk(name));
    Ok(())
}
