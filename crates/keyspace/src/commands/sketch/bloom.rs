//! Bloom filters.

use std::borrow::Cow;

use command::{Group, Refusal};
use resp::{Args, Writer};

use super::{CHANGED_KEY, CHUNK_BYTES, GROWING, MADE_KEY, PLAIN, READING_FAST, at_most, double, find_as, number};
use super::{is_resp3, write_number};
use crate::commands::arguments::is;
use crate::commands::{Body, DataCommand};
use crate::sketch::Sketch;
use crate::sketch::bloom::{Bloom, Full};
use crate::{Edit, View};

pub(super) const COMMANDS: &[&DataCommand] =
    &[&RESERVE, &ADD, &MADD, &INSERT, &EXISTS, &MEXISTS, &INFO, &CARD, &DEBUG, &SCANDUMP, &LOADCHUNK];

const CAPACITY_MAX: i64 = 1 << 30;
const GROWTH_MAX: i64 = 32_768;
/// More frequent errors than these are no use.
const ERROR_MAX: f64 = 0.25;

const READING: DataCommand = DataCommand { group: Group::Bloom, flags: READING_FAST, ..PLAIN };
const CHANGING: DataCommand = DataCommand { flags: GROWING, keys: CHANGED_KEY, ..READING };

find_as!(filter, Bloom, Bloom);

fn not_found() -> Refusal {
    Refusal::new("ERR not found")
}

fn bad_data() -> Refusal {
    Refusal::new("ERR received bad data")
}

/// Parameters of a new filter.
struct Wish {
    error: f64,
    capacity: i64,
    growth: i64,
    is_scaling: bool,
}

impl Default for Wish {
    fn default() -> Self {
        Self { error: 0.01, capacity: 100, growth: 2, is_scaling: true }
    }
}

impl Wish {
    fn make(&self) -> Result<Bloom, Refusal> {
        let filter = Bloom::new(self.capacity as u64, self.error, self.growth as u32, self.is_scaling);
        filter.ok_or(Refusal::new("ERR Insufficient memory to create filter"))
    }
}

fn is_error(error: f64) -> bool {
    error > 0.0 && error < 1.0
}

const RESERVE: DataCommand = DataCommand {
    name: "bf.reserve",
    summary: "Creates an empty Bloom filter.",
    syntax: "key error_rate capacity [EXPANSION expansion] [NONSCALING]",
    arity: -4,
    keys: MADE_KEY,
    body: Body::Mutate(reserve),
    ..CHANGING
};

fn reserve(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    at_most(args, 7, "bf.reserve")?;
    let mut wish = Wish { error: double(args.at(2), "ERR bad error rate")?, ..Wish::default() };
    if !is_error(wish.error) {
        return Err(Refusal::new("ERR error rate must be in the range (0.000000, 1.000000)"));
    }
    wish.error = wish.error.min(ERROR_MAX);
    wish.capacity = number(args.at(3), "ERR bad capacity")?;
    if !(1..=CAPACITY_MAX).contains(&wish.capacity) {
        return Err(Refusal::new(format!("ERR capacity must be in the range [1, {CAPACITY_MAX}]")));
    }
    let mut growth = None;
    let mut at = 4;
    while let Some(word) = args.get(at) {
        if is(word, "nonscaling") {
            wish.is_scaling = false;
        } else if is(word, "expansion") {
            at += 1;
            let word = args.get(at).ok_or(Refusal::new("ERR no expansion"))?;
            growth = Some(number(word, "ERR bad expansion")?);
        } else {
            return Err(Refusal::SYNTAX);
        }
        at += 1;
    }
    match growth {
        Some(0) => wish.is_scaling = false,
        Some(_) if !wish.is_scaling => return Err(Refusal::new("Nonscaling filters cannot expand")),
        Some(growth) if !(0..=GROWTH_MAX).contains(&growth) => {
            return Err(Refusal::new(format!("ERR expansion must be in the range [0, {GROWTH_MAX}]")));
        }
        _ => {}
    }
    wish.growth = growth.unwrap_or(wish.growth);
    if filter(&edit.view(), args.at(1))?.is_some() {
        return Err(Refusal::new("ERR item exists"));
    }
    edit.set_sketch(args.at(1), Sketch::Bloom(wish.make()?))?;
    writer.ok();
    Ok(())
}

const ADD: DataCommand = DataCommand {
    name: "bf.add",
    summary: "Adds an item to a Bloom filter, and creates the filter if there is none.",
    complexity: "O(k) where k is the number of hashes, for each layer of the filter.",
    syntax: "key item",
    arity: 3,
    body: Body::Mutate(|edit, args, writer| {
        let answers = add(edit, args.at(1), args.iter().skip(2), Some(&Wish::default()))?;
        match answers[0] {
            Ok(is_new) => writer.boolean(is_new),
            Err(full) => return Err(refusal_of(full)),
        }
        Ok(())
    }),
    ..CHANGING
};

const MADD: DataCommand = DataCommand {
    name: "bf.madd",
    summary: "Adds items to a Bloom filter, and creates the filter if there is none.",
    complexity: "O(k * n) where k is the number of hashes and n is the number of items.",
    syntax: "key item [item ...]",
    arity: -3,
    body: Body::Mutate(|edit, args, writer| {
        let answers = add(edit, args.at(1), args.iter().skip(2), Some(&Wish::default()))?;
        write_answers(writer, &answers);
        Ok(())
    }),
    ..CHANGING
};

const INSERT: DataCommand = DataCommand {
    name: "bf.insert",
    summary: "Adds items to a Bloom filter, and creates it with the given options if there is none.",
    syntax: "key [CAPACITY capacity] [ERROR error] [EXPANSION expansion] [NOCREATE] [NONSCALING] ITEMS item [item ...]",
    arity: -4,
    body: Body::Mutate(insert),
    ..MADD
};

fn insert(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let wrong_arity = || Refusal::wrong_arity("bf.insert");
    let mut wish = Wish::default();
    let mut makes = true;
    let mut at = 2;
    loop {
        let word = args.get(at).ok_or_else(wrong_arity)?;
        let operand = || args.get(at + 1).ok_or_else(wrong_arity);
        if is(word, "items") {
            break;
        } else if is(word, "nocreate") {
            makes = false;
        } else if is(word, "nonscaling") {
            wish.is_scaling = false;
        } else if is(word, "error") {
            wish.error = double(operand()?, "Bad error rate")?;
            if !is_error(wish.error) {
                return Err(Refusal::new("Bad error rate"));
            }
            wish.error = wish.error.min(ERROR_MAX);
            at += 1;
        } else if is(word, "capacity") {
            wish.capacity = number(operand()?, "Bad capacity")?;
            if !(1..=CAPACITY_MAX).contains(&wish.capacity) {
                return Err(Refusal::new("Bad capacity"));
            }
            at += 1;
        } else if is(word, "expansion") {
            wish.growth = number(operand()?, "Bad expansion")?;
            if !(0..=GROWTH_MAX).contains(&wish.growth) {
                return Err(Refusal::new("Bad expansion"));
            }
            at += 1;
        } else {
            return Err(Refusal::new("Unknown argument received"));
        }
        at += 1;
    }
    if at + 1 == args.len() {
        return Err(wrong_arity());
    }
    wish.is_scaling &= wish.growth > 0;
    let answers = add(edit, args.at(1), args.iter().skip(at + 1), makes.then_some(&wish))?;
    write_answers(writer, &answers);
    Ok(())
}

/// Adds items, up to the first that finds no room, which is the last in the answer.
fn add<'a>(
    edit: &mut Edit<'_>,
    key: &[u8],
    items: impl Iterator<Item = &'a [u8]> + Clone,
    wish: Option<&Wish>,
) -> Result<Vec<Result<bool, Full>>, Refusal> {
    match filter(&edit.view(), key)? {
        None => {
            let mut filter = wish.ok_or_else(not_found)?.make()?;
            let answers = add_each(&mut filter, items);
            edit.set_sketch(key, Sketch::Bloom(filter))?;
            Ok(answers)
        }
        // Many have been seen before, and then nothing changes.
        Some(filter) if items.clone().all(|item| filter.contains(item)) => Ok(items.map(|_| Ok(false)).collect()),
        Some(Cow::Owned(mut filter)) => {
            let answers = add_each(&mut filter, items);
            edit.set_sketch(key, Sketch::Bloom(filter))?;
            Ok(answers)
        }
        Some(Cow::Borrowed(_)) => edit.change_sketch(key, |sketch| match sketch {
            Sketch::Bloom(filter) => add_each(filter, items),
            _ => unreachable!("its type has been looked at"),
        }),
    }
}

fn add_each<'a>(filter: &mut Bloom, items: impl Iterator<Item = &'a [u8]>) -> Vec<Result<bool, Full>> {
    let mut answers = Vec::new();
    for item in items {
        answers.push(filter.add(item));
        if let Some(Err(_)) = answers.last() {
            break;
        }
    }
    answers
}

fn refusal_of(full: Full) -> Refusal {
    Refusal::new(match full {
        Full::NotScaling => "ERR non scaling filter is full",
        Full::TooLarge => "ERR problem inserting into filter",
    })
}

fn write_answers(writer: &mut Writer, answers: &[Result<bool, Full>]) {
    writer.array(answers.len());
    for answer in answers {
        match answer {
            Ok(is_new) => writer.boolean(*is_new),
            Err(full) => writer.error(refusal_of(*full).text()),
        }
    }
}

const EXISTS: DataCommand = DataCommand {
    name: "bf.exists",
    summary: "Returns whether an item is in a Bloom filter.",
    complexity: "O(k) where k is the number of hashes, for each layer of the filter.",
    syntax: "key item",
    arity: 3,
    body: Body::Query(|view, args, writer| {
        writer.boolean(contains(view, args.at(1), args.at(2)));
        Ok(())
    }),
    ..READING
};

const MEXISTS: DataCommand = DataCommand {
    name: "bf.mexists",
    summary: "Returns which items are in a Bloom filter.",
    complexity: "O(k * n) where k is the number of hashes and n is the number of items.",
    syntax: "key item [item ...]",
    arity: -3,
    body: Body::Query(|view, args, writer| {
        let filter = filter(view, args.at(1)).ok().flatten();
        writer.array(args.len() - 2);
        for item in args.iter().skip(2) {
            writer.boolean(filter.as_ref().is_some_and(|filter| filter.contains(item)));
        }
        Ok(())
    }),
    ..READING
};

/// As in RedisBloom, nothing is in what is no filter.
fn contains(view: &View<'_>, key: &[u8], item: &[u8]) -> bool {
    filter(view, key).ok().flatten().is_some_and(|filter| filter.contains(item))
}

const INFO: DataCommand = DataCommand {
    name: "bf.info",
    summary: "Describes a Bloom filter.",
    syntax: "key [CAPACITY | SIZE | FILTERS | ITEMS | EXPANSION]",
    arity: -2,
    body: Body::Query(info),
    ..READING
};

/// Bytes that RedisBloom counts for a filter and for a layer, beside the cells.
const FILTER_BYTES: u64 = 32;
const LAYER_BYTES: u64 = 64;

fn info(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    at_most(args, 3, "bf.info")?;
    let filter = filter(view, args.at(1))?.ok_or_else(not_found)?;
    let layers = filter.layers.len() as u64;
    let fields = [
        ("capacity", "Capacity", Some(filter.capacity())),
        ("size", "Size", Some(FILTER_BYTES + LAYER_BYTES * layers + filter.cell_bytes())),
        ("filters", "Number of filters", Some(layers)),
        ("items", "Number of items inserted", Some(filter.size)),
        ("expansion", "Expansion rate", filter.is_scaling().then_some(filter.growth.into())),
    ];
    let write = |writer: &mut Writer, value: Option<u64>| match value {
        Some(number) => write_number(writer, number),
        None => writer.null(),
    };
    let Some(wanted) = args.get(2) else {
        writer.map(fields.len());
        for (_, name, value) in fields {
            writer.simple(name);
            write(writer, value);
        }
        return Ok(());
    };
    let field = fields.into_iter().find(|(word, ..)| is(wanted, word));
    let (_, name, value) = field.ok_or(Refusal::new("Invalid information value"))?;
    if is_resp3(writer) {
        writer.map(1);
        writer.simple(name);
    } else {
        writer.array(1);
    }
    write(writer, value);
    Ok(())
}

const CARD: DataCommand = DataCommand {
    name: "bf.card",
    since: "2.4.4",
    summary: "Returns the number of items added to a Bloom filter.",
    body: Body::Query(|view, args, writer| {
        write_number(writer, filter(view, args.at(1))?.map_or(0, |filter| filter.size));
        Ok(())
    }),
    ..READING
};

const DEBUG: DataCommand = DataCommand {
    name: "bf.debug",
    summary: "Describes the layers of a Bloom filter.",
    complexity: "O(n) where n is the number of layers.",
    body: Body::Query(|view, args, writer| {
        let filter = filter(view, args.at(1))?.ok_or_else(not_found)?;
        writer.array(1 + filter.layers.len());
        writer.bulk(format!("size:{}", filter.size).as_bytes());
        for layer in &filter.layers {
            let line = format!(
                "bytes:{} bits:{} hashes:{} hashwidth:{} capacity:{} size:{} ratio:{}",
                layer.cells.len(),
                layer.bits,
                layer.hashes,
                filter.hash_bits(),
                layer.capacity,
                layer.size,
                layer.error,
            );
            writer.bulk(line.as_bytes());
        }
        Ok(())
    }),
    ..READING
};

const SCANDUMP: DataCommand = DataCommand {
    name: "bf.scandump",
    summary: "Returns a part of a Bloom filter for BF.LOADCHUNK, and where the next part begins.",
    complexity: "O(n) where n is the number of bytes.",
    syntax: "key iterator",
    arity: 3,
    body: Body::Query(|view, args, writer| {
        let filter = filter(view, args.at(1))?.ok_or_else(not_found)?;
        let iterator = number(args.at(2), "Second argument must be numeric")?;
        let (next, chunk) = match iterator {
            0 => (1, filter.dump_header()),
            1.. => match filter.dump_chunk(iterator as u64 - 1, CHUNK_BYTES) {
                Some(chunk) => (iterator + chunk.len() as i64, chunk),
                None => (0, Vec::new()),
            },
            _ => (0, Vec::new()),
        };
        writer.array(2);
        writer.integer(next);
        writer.bulk(&chunk);
        Ok(())
    }),
    ..READING
};

const LOADCHUNK: DataCommand = DataCommand {
    name: "bf.loadchunk",
    summary: "Restores a part of a Bloom filter that BF.SCANDUMP returned.",
    complexity: "O(n) where n is the number of bytes.",
    syntax: "key iterator data",
    arity: 4,
    body: Body::Mutate(load_chunk),
    ..CHANGING
};

fn load_chunk(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let (key, chunk) = (args.at(1), args.at(3));
    let iterator = number(args.at(2), "ERR Second argument must be numeric")?;
    if filter(&edit.view(), key)?.is_none() {
        if iterator != 1 {
            return Err(not_found());
        }
        let filter = Bloom::from_header(chunk).ok_or_else(bad_data)?;
        edit.set_sketch(key, Sketch::Bloom(filter))?;
    } else {
        // The iterator is that of the part behind this one.
        let offset = u64::try_from(iterator).ok().and_then(|iterator| iterator.checked_sub(chunk.len() as u64 + 1));
        let offset = offset.ok_or_else(bad_data)?;
        let fits = edit.change_sketch(key, |sketch| match sketch {
            Sketch::Bloom(filter) => filter.load_chunk(offset, chunk),
            _ => false,
        })?;
        if !fits {
            return Err(Refusal::new("ERR invalid chunk - Too big for current filter"));
        }
    }
    writer.ok();
    Ok(())
}
