//! Count-min sketches.

use command::{Access, Group, Refusal};
use resp::{Args, Writer};

use super::{CHANGED_KEY, GROWING, MADE_KEY, PLAIN, double, find_as, number, write_number};
use crate::commands::arguments::is;
use crate::commands::key_specs::{counted_keys, key_at};
use crate::commands::{Body, DataCommand};
use crate::sketch::Sketch;
use crate::sketch::count_min::CountMin;
use crate::{Edit, View};

pub(super) const COMMANDS: &[&DataCommand] = &[&INITBYDIM, &INITBYPROB, &INCRBY, &QUERY, &MERGE, &INFO];

const READING: DataCommand = DataCommand { since: "2.0.0", group: Group::CountMin, ..PLAIN };
const CHANGING: DataCommand = DataCommand { flags: GROWING, keys: CHANGED_KEY, ..READING };

find_as!(sketch, CountMin, CountMin);

fn no_key() -> Refusal {
    Refusal::new("CMS: key does not exist")
}

const INITBYDIM: DataCommand = DataCommand {
    name: "cms.initbydim",
    summary: "Creates a count-min sketch of these dimensions.",
    syntax: "key width depth",
    arity: 4,
    keys: MADE_KEY,
    body: Body::Mutate(|edit, args, writer| {
        check_free(edit, args.at(1))?;
        let width = number(args.at(2), "CMS: invalid width")?;
        let width = u64::try_from(width).ok().filter(|&width| width > 0).ok_or(Refusal::new("CMS: invalid width"))?;
        let depth = number(args.at(3), "CMS: invalid depth")?;
        let depth = u64::try_from(depth).ok().filter(|&depth| depth > 0).ok_or(Refusal::new("CMS: invalid depth"))?;
        make(edit, args.at(1), width, depth, writer)
    }),
    ..CHANGING
};

const INITBYPROB: DataCommand = DataCommand {
    name: "cms.initbyprob",
    summary: "Creates a count-min sketch for an error and the probability that the error is larger.",
    syntax: "key error probability",
    body: Body::Mutate(|edit, args, writer| {
        check_free(edit, args.at(1))?;
        let share = |word, complaint| {
            double(word, complaint).ok().filter(|share| *share > 0.0 && *share < 1.0).ok_or(Refusal::new(complaint))
        };
        let error = share(args.at(2), "CMS: invalid overestimation value")?;
        let probability = share(args.at(3), "CMS: invalid prob value")?;
        let (width, depth) = CountMin::dimensions(error, probability);
        make(edit, args.at(1), width, depth, writer)
    }),
    ..INITBYDIM
};

fn check_free(edit: &Edit<'_>, key: &[u8]) -> Result<(), Refusal> {
    if edit.contains(key) { Err(Refusal::new("CMS: key already exists")) } else { Ok(()) }
}

fn make(edit: &mut Edit<'_>, key: &[u8], width: u64, depth: u64, writer: &mut Writer) -> Result<(), Refusal> {
    let sketch = CountMin::new(width, depth);
    let sketch = sketch.ok_or(Refusal::new("CMS: Insufficient memory to create the key"))?;
    edit.set_sketch(key, Sketch::CountMin(sketch))?;
    writer.ok();
    Ok(())
}

const INCRBY: DataCommand = DataCommand {
    name: "cms.incrby",
    summary: "Counts items.",
    complexity: "O(n) where n is the number of items.",
    syntax: "key item increment [item increment ...]",
    arity: -4,
    body: Body::Mutate(increase),
    ..CHANGING
};

fn increase(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    if args.len() % 2 == 1 {
        return Err(Refusal::wrong_arity("cms.incrby"));
    }
    sketch(&edit.view(), args.at(1))?.ok_or_else(no_key)?;
    let mut counts = Vec::new();
    for at in (2..args.len()).step_by(2) {
        let count = number(args.at(at + 1), "CMS: Cannot parse number")?;
        let count = u64::try_from(count).map_err(|_| Refusal::new("CMS: Number cannot be negative"))?;
        counts.push((args.at(at), count));
    }
    let counted = edit.change_sketch(args.at(1), |sketch| match sketch {
        Sketch::CountMin(sketch) => counts.iter().map(|(item, count)| sketch.add(item, *count)).collect(),
        _ => Vec::new(),
    })?;
    writer.array(counted.len());
    for count in counted {
        match count {
            u32::MAX => writer.error("CMS: INCRBY overflow"),
            count => writer.integer(count.into()),
        }
    }
    Ok(())
}

const QUERY: DataCommand = DataCommand {
    name: "cms.query",
    summary: "Returns how often items were counted, or more.",
    complexity: "O(n) where n is the number of items.",
    syntax: "key item [item ...]",
    arity: -3,
    body: Body::Query(|view, args, writer| {
        let sketch = sketch(view, args.at(1))?.ok_or_else(no_key)?;
        writer.array(args.len() - 2);
        args.iter().skip(2).for_each(|item| writer.integer(sketch.count(item).into()));
        Ok(())
    }),
    ..READING
};

const MERGE: DataCommand = DataCommand {
    name: "cms.merge",
    summary: "Makes a count-min sketch the weighted sum of others.",
    complexity: "O(n) where n is the number of counters of all sketches.",
    syntax: "destination numKeys source [source ...] [WEIGHTS weight [weight ...]]",
    arity: -4,
    keys: &[key_at(1, Access::ReadWrite, &["access", "update"]), counted_keys(2, Access::Read, &["access"])],
    body: Body::Mutate(merge),
    ..CHANGING
};

fn merge(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let view = edit.view();
    let destination = sketch(&view, args.at(1))?.ok_or_else(no_key)?;
    let (width, depth) = (destination.width, destination.depth);
    let count = number(args.at(2), "CMS: invalid numkeys")?;
    let count = usize::try_from(count).ok().filter(|&count| count > 0);
    let count = count.ok_or(Refusal::new("CMS: Number of keys must be positive"))?;
    // Words behind the count.
    let words = args.len() - 3;
    let has_weights = match (3..args.len()).find(|&at| is(args.at(at), "weights")) {
        None if words == count => false,
        None => return Err(Refusal::new("CMS: wrong number of keys")),
        Some(at) if at - 3 == count && words == 2 * count + 1 => true,
        Some(_) => return Err(Refusal::new("CMS: wrong number of keys/weights")),
    };
    let mut sources = Vec::new();
    for nth in 0..count {
        let weight = if has_weights { number(args.at(count + 4 + nth), "CMS: invalid weight value")? } else { 1 };
        let source = sketch(&view, args.at(3 + nth))?.ok_or_else(no_key)?;
        if (source.width, source.depth) != (width, depth) {
            return Err(Refusal::new("CMS: width/depth is not equal"));
        }
        sources.push((source, weight));
    }
    let borrowed: Vec<_> = sources.iter().map(|(source, weight)| (&**source, *weight)).collect();
    let merged = CountMin::merged(width, depth, &borrowed).ok_or(Refusal::new("CMS: MERGE overflow"))?;
    drop((sources, destination));
    edit.set_sketch(args.at(1), Sketch::CountMin(merged))?;
    writer.ok();
    Ok(())
}

const INFO: DataCommand = DataCommand {
    name: "cms.info",
    summary: "Describes a count-min sketch.",
    body: Body::Query(|view, args, writer| {
        let sketch = sketch(view, args.at(1))?.ok_or_else(no_key)?;
        let fields = [("width", sketch.width), ("depth", sketch.depth), ("count", sketch.sum)];
        writer.map(fields.len());
        for (name, value) in fields {
            writer.simple(name);
            write_number(writer, value);
        }
        Ok(())
    }),
    ..READING
};
