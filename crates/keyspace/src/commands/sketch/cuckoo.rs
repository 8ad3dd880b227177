//! Cuckoo filters.

use std::borrow::Cow;

use command::{Flag, Group, Refusal};
use resp::{Args, Writer};

use super::write_number;
use super::{CHANGED_KEY, CHUNK_BYTES, GROWING, MADE_KEY, PLAIN, READING_FAST, find_as, is_resp3, number};
use crate::commands::arguments::is;
use crate::commands::{Body, DataCommand};
use crate::sketch::Sketch;
use crate::sketch::cuckoo::{Cuckoo, Full, GROWTH_MAX, LAYERS_MAX};
use crate::{Edit, View};

pub(super) const COMMANDS: &[&DataCommand] = &[
    &RESERVE, &ADD, &ADDNX, &INSERT, &INSERTNX, &EXISTS, &MEXISTS, &COUNT, &DEL, &COMPACT, &INFO, &DEBUG, &SCANDUMP,
    &LOADCHUNK,
];

const CAPACITY_MAX: i64 = 1 << 30;
const BUCKET_LEN_MAX: i64 = 255;
const TRIES_MAX: i64 = 65_535;

const READING: DataCommand = DataCommand { group: Group::Cuckoo, flags: READING_FAST, ..PLAIN };
const CHANGING: DataCommand = DataCommand { flags: GROWING, keys: CHANGED_KEY, ..READING };

find_as!(filter, Cuckoo, Cuckoo);

fn not_found() -> Refusal {
    Refusal::new("ERR not found")
}

/// Parameters of a new filter.
struct Wish {
    capacity: i64,
    bucket_len: i64,
    tries: i64,
    growth: i64,
}

impl Default for Wish {
    fn default() -> Self {
        Self { capacity: 1024, bucket_len: 2, tries: 20, growth: 1 }
    }
}

impl Wish {
    fn make(&self) -> Result<Cuckoo, Refusal> {
        let filter = Cuckoo::new(self.capacity as u64, self.bucket_len as u16, self.tries as u16, self.growth as u16);
        filter.ok_or(Refusal::new("ERR Insufficient memory to create filter"))
    }
}

/// A number in a range.
fn bounded(word: &[u8], name: &str, least: i64, most: i64) -> Result<i64, Refusal> {
    let number = crate::commands::arguments::parse_integer(word);
    let number = number.ok_or_else(|| Refusal::new(format!("Couldn't parse {name}")))?;
    if !(least..=most).contains(&number) {
        return Err(Refusal::new(format!("{name}: value must be in the range [{least}, {most}]")));
    }
    Ok(number)
}

const RESERVE: DataCommand = DataCommand {
    name: "cf.reserve",
    summary: "Creates an empty cuckoo filter.",
    syntax: "key capacity [BUCKETSIZE bucketsize] [MAXITERATIONS maxiterations] [EXPANSION expansion]",
    arity: -3,
    keys: MADE_KEY,
    body: Body::Mutate(reserve),
    ..CHANGING
};

fn reserve(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let mut wish = Wish::default();
    if args.len().is_multiple_of(2) {
        return Err(Refusal::wrong_arity("cf.reserve"));
    }
    wish.capacity = number(args.at(2), "Bad capacity")?;
    for at in (3..args.len()).step_by(2) {
        let (word, value) = (args.at(at), args.at(at + 1));
        if is(word, "maxiterations") {
            wish.tries = bounded(value, "MAXITERATIONS", 1, TRIES_MAX)?;
        } else if is(word, "bucketsize") {
            wish.bucket_len = bounded(value, "BUCKETSIZE", 1, BUCKET_LEN_MAX)?;
        } else if is(word, "expansion") {
            wish.growth = bounded(value, "EXPANSION", 0, GROWTH_MAX.into())?;
        } else {
            return Err(Refusal::SYNTAX);
        }
    }
    if !(wish.bucket_len * 2..=CAPACITY_MAX).contains(&wish.capacity) {
        let text = format!("Capacity must be in the range [2 * BUCKETSIZE, {CAPACITY_MAX}]");
        return Err(Refusal::new(text));
    }
    if filter(&edit.view(), args.at(1))?.is_some() {
        return Err(Refusal::new("ERR item exists"));
    }
    edit.set_sketch(args.at(1), Sketch::Cuckoo(wish.make()?))?;
    writer.ok();
    Ok(())
}

const ADD: DataCommand = DataCommand {
    name: "cf.add",
    summary: "Adds an item to a cuckoo filter, and creates the filter if there is none.",
    complexity: "O(k + i) where k is the number of layers and i is the most tries.",
    syntax: "key item",
    arity: 3,
    body: Body::Mutate(|edit, args, writer| add_one(edit, args, writer, false)),
    ..CHANGING
};

const ADDNX: DataCommand = DataCommand {
    name: "cf.addnx",
    summary: "Adds an item to a cuckoo filter unless it is there; creates the filter if there is none.",
    body: Body::Mutate(|edit, args, writer| add_one(edit, args, writer, true)),
    ..ADD
};

const INSERT: DataCommand = DataCommand {
    name: "cf.insert",
    summary: "Adds items to a cuckoo filter, and creates it with the given options if there is none.",
    complexity: "O(n * (k + i)) where n is the number of items, k is the number of layers and i is the most tries.",
    syntax: "key [CAPACITY capacity] [NOCREATE] ITEMS item [item ...]",
    arity: -4,
    body: Body::Mutate(|edit, args, writer| insert(edit, args, writer, false)),
    ..CHANGING
};

const INSERTNX: DataCommand = DataCommand {
    name: "cf.insertnx",
    summary: "Adds the items that are not there to a cuckoo filter; creates the filter if there is none.",
    body: Body::Mutate(|edit, args, writer| insert(edit, args, writer, true)),
    ..INSERT
};

/// False for what is there already.
type Answer = Result<bool, Full>;

fn add_one(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer, unless_there: bool) -> Result<(), Refusal> {
    let answers = add(edit, args.at(1), args.iter().skip(2), unless_there, Some(&Wish::default()))?;
    match answers[0] {
        Ok(is_new) => writer.boolean(is_new),
        Err(Full::NotGrowing) => return Err(Refusal::new("Filter is full")),
        Err(Full::TooLarge) => return Err(Refusal::new("ERR Insufficient memory")),
    }
    Ok(())
}

fn insert(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer, unless_there: bool) -> Result<(), Refusal> {
    let wrong_arity = || Refusal::wrong_arity(if unless_there { "cf.insertnx" } else { "cf.insert" });
    let mut wish = Wish::default();
    let mut makes = true;
    let mut at = 2;
    loop {
        let word = args.get(at).ok_or_else(wrong_arity)?;
        if is(word, "items") {
            break;
        } else if is(word, "nocreate") {
            makes = false;
        } else if is(word, "capacity") {
            at += 1;
            wish.capacity = number(args.get(at).ok_or_else(wrong_arity)?, "Bad capacity")?;
            if !(wish.bucket_len * 2..=CAPACITY_MAX).contains(&wish.capacity) {
                let text = format!("Capacity must be in the range [cf-bucket-size * 2, {CAPACITY_MAX}]");
                return Err(Refusal::new(text));
            }
        } else {
            return Err(Refusal::new("Unknown argument received"));
        }
        at += 1;
    }
    if at + 1 == args.len() {
        return Err(wrong_arity());
    }
    let answers = add(edit, args.at(1), args.iter().skip(at + 1), unless_there, makes.then_some(&wish))?;
    writer.array(answers.len());
    for answer in answers {
        // Where it matters why nothing was added, a truth value would not say it.
        match answer {
            Ok(is_new) if unless_there => writer.integer(is_new.into()),
            Ok(is_new) => writer.boolean(is_new),
            Err(_) if is_resp3(writer) && !unless_there => writer.boolean(false),
            Err(_) => writer.integer(-1),
        }
    }
    Ok(())
}

fn add<'a>(
    edit: &mut Edit<'_>,
    key: &[u8],
    items: impl Iterator<Item = &'a [u8]> + Clone,
    unless_there: bool,
    wish: Option<&Wish>,
) -> Result<Vec<Answer>, Refusal> {
    match filter(&edit.view(), key)? {
        None => {
            let mut filter = wish.ok_or_else(not_found)?.make()?;
            let answers = add_each(&mut filter, items, unless_there);
            edit.set_sketch(key, Sketch::Cuckoo(filter))?;
            Ok(answers)
        }
        Some(filter) if filter.layers.len() >= LAYERS_MAX => Err(Refusal::new("Maximum expansions reached")),
        Some(filter) if unless_there && items.clone().all(|item| filter.contains(item)) => {
            Ok(items.map(|_| Ok(false)).collect())
        }
        Some(Cow::Owned(mut filter)) => {
            let answers = add_each(&mut filter, items, unless_there);
            edit.set_sketch(key, Sketch::Cuckoo(filter))?;
            Ok(answers)
        }
        Some(Cow::Borrowed(_)) => edit.change_sketch(key, |sketch| match sketch {
            Sketch::Cuckoo(filter) => add_each(filter, items, unless_there),
            _ => unreachable!("its type has been looked at"),
        }),
    }
}

fn add_each<'a>(filter: &mut Cuckoo, items: impl Iterator<Item = &'a [u8]>, unless_there: bool) -> Vec<Answer> {
    let add = |item| {
        let is_there = unless_there && filter.contains(item);
        // One command may not outgrow what the next one is refused for.
        if !is_there && filter.layers.len() > LAYERS_MAX {
            Err(Full::TooLarge)
        } else if is_there {
            Ok(false)
        } else {
            filter.add(item).map(|()| true)
        }
    };
    items.map(add).collect()
}

const EXISTS: DataCommand = DataCommand {
    name: "cf.exists",
    summary: "Returns whether an item is in a cuckoo filter.",
    complexity: "O(k) where k is the number of layers.",
    syntax: "key item",
    arity: 3,
    body: Body::Query(|view, args, writer| {
        writer.boolean(found(view, args.at(1)).is_some_and(|filter| filter.contains(args.at(2))));
        Ok(())
    }),
    ..READING
};

const MEXISTS: DataCommand = DataCommand {
    name: "cf.mexists",
    summary: "Returns which items are in a cuckoo filter.",
    complexity: "O(k * n) where k is the number of layers and n is the number of items.",
    syntax: "key item [item ...]",
    arity: -3,
    body: Body::Query(|view, args, writer| {
        let filter = found(view, args.at(1));
        writer.array(args.len() - 2);
        for item in args.iter().skip(2) {
            writer.boolean(filter.as_ref().is_some_and(|filter| filter.contains(item)));
        }
        Ok(())
    }),
    ..READING
};

const COUNT: DataCommand = DataCommand {
    name: "cf.count",
    summary: "Returns how often an item may be in a cuckoo filter.",
    body: Body::Query(|view, args, writer| {
        write_number(writer, found(view, args.at(1)).map_or(0, |filter| filter.count(args.at(2))));
        Ok(())
    }),
    ..EXISTS
};

/// As in RedisBloom, nothing is in what is no filter.
fn found<'a>(view: &View<'a>, key: &[u8]) -> Option<Cow<'a, Cuckoo>> {
    filter(view, key).ok().flatten()
}

const DEL: DataCommand = DataCommand {
    name: "cf.del",
    summary: "Removes an item from a cuckoo filter, once.",
    complexity: "O(k) where k is the number of layers.",
    syntax: "key item",
    arity: 3,
    flags: &[Flag::Write, Flag::Fast],
    body: Body::Mutate(|edit, args, writer| {
        let (key, item) = (args.at(1), args.at(2));
        let is_there = found(&edit.view(), key).map(|filter| filter.contains(item));
        let removed = match is_there {
            None => return Err(Refusal::new("Not found")),
            Some(false) => false,
            Some(true) => edit.change_sketch(key, |sketch| match sketch {
                Sketch::Cuckoo(filter) => filter.remove(item),
                _ => false,
            })?,
        };
        writer.boolean(removed);
        Ok(())
    }),
    ..CHANGING
};

const COMPACT: DataCommand = DataCommand {
    name: "cf.compact",
    summary: "Moves items from the upper layers of a cuckoo filter to lower ones.",
    complexity: "O(n) where n is the number of cells.",
    flags: &[Flag::Write],
    body: Body::Mutate(|edit, args, writer| {
        if found(&edit.view(), args.at(1)).is_none() {
            return Err(Refusal::new("Cuckoo filter was not found"));
        }
        edit.change_sketch(args.at(1), |sketch| {
            if let Sketch::Cuckoo(filter) = sketch {
                filter.compact(true);
            }
        })?;
        writer.ok();
        Ok(())
    }),
    ..CHANGING
};

/// Bytes that RedisBloom counts for a filter and for a layer, beside the cells.
const FILTER_BYTES: u64 = 40;
const LAYER_BYTES: u64 = 16;

const INFO: DataCommand = DataCommand {
    name: "cf.info",
    summary: "Describes a cuckoo filter.",
    body: Body::Query(|view, args, writer| {
        let filter = filter(view, args.at(1))?.ok_or_else(not_found)?;
        let layers = filter.layers.len() as u64;
        let fields = [
            ("Size", FILTER_BYTES + LAYER_BYTES * layers + filter.cell_bytes()),
            ("Number of buckets", filter.buckets),
            ("Number of filters", layers),
            ("Number of items inserted", filter.size),
            ("Number of items deleted", filter.removed),
            ("Bucket size", filter.bucket_len.into()),
            ("Expansion rate", filter.growth.into()),
            ("Max iterations", filter.tries.into()),
        ];
        writer.map(fields.len());
        for (name, value) in fields {
            writer.simple(name);
            write_number(writer, value);
        }
        Ok(())
    }),
    ..READING
};

const DEBUG: DataCommand = DataCommand {
    name: "cf.debug",
    summary: "Describes a cuckoo filter in one line.",
    body: Body::Query(|view, args, writer| {
        let filter = filter(view, args.at(1))?.ok_or_else(not_found)?;
        let line = format!(
            "bktsize:{} buckets:{} items:{} deletes:{} filters:{} max_iterations:{} expansion:{}",
            filter.bucket_len,
            filter.buckets,
            filter.size,
            filter.removed,
            filter.layers.len(),
            filter.tries,
            filter.growth,
        );
        writer.bulk(line.as_bytes());
        Ok(())
    }),
    ..READING
};

const SCANDUMP: DataCommand = DataCommand {
    name: "cf.scandump",
    summary: "Returns a part of a cuckoo filter for CF.LOADCHUNK, and where the next part begins.",
    complexity: "O(n) where n is the number of bytes.",
    syntax: "key iterator",
    arity: 3,
    body: Body::Query(|view, args, writer| {
        let iterator = number(args.at(2), "Invalid position")?;
        if iterator < 0 {
            return Err(Refusal::new("Invalid position"));
        }
        let filter = filter(view, args.at(1))?.ok_or_else(not_found)?;
        writer.array(2);
        let chunk = match iterator {
            _ if filter.size == 0 => None,
            0 => Some((1, filter.dump_header())),
            _ => {
                filter.dump_chunk(iterator as u64 - 1, CHUNK_BYTES).map(|chunk| (iterator + chunk.len() as i64, chunk))
            }
        };
        match chunk {
            Some((next, chunk)) => {
                writer.integer(next);
                writer.bulk(&chunk);
            }
            None => {
                writer.integer(0);
                writer.null();
            }
        }
        Ok(())
    }),
    ..READING
};

const LOADCHUNK: DataCommand = DataCommand {
    name: "cf.loadchunk",
    summary: "Restores a part of a cuckoo filter that CF.SCANDUMP returned.",
    complexity: "O(n) where n is the number of bytes.",
    syntax: "key iterator data",
    arity: 4,
    body: Body::Mutate(load_chunk),
    ..CHANGING
};

fn load_chunk(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let (key, chunk) = (args.at(1), args.at(3));
    let position = number(args.at(2), "Invalid position")?;
    if position == 0 {
        return Err(Refusal::new("Invalid position"));
    }
    let is_there = filter(&edit.view(), key)?.is_some();
    if position == 1 {
        if is_there {
            return Err(Refusal::new("ERR item exists"));
        }
        if !Cuckoo::is_header(chunk) {
            return Err(Refusal::new("Invalid header"));
        }
        let filter = Cuckoo::from_header(chunk).ok_or(Refusal::new("Couldn't create filter!"))?;
        edit.set_sketch(key, Sketch::Cuckoo(filter))?;
    } else {
        if !is_there {
            return Err(not_found());
        }
        let offset = u64::try_from(position).ok().and_then(|position| position.checked_sub(chunk.len() as u64 + 1));
        let fits = match offset.filter(|_| !chunk.is_empty()) {
            None => false,
            Some(offset) => edit.change_sketch(key, |sketch| match sketch {
                Sketch::Cuckoo(filter) => filter.load_chunk(offset, chunk),
                _ => false,
            })?,
        };
        if !fits {
            return Err(Refusal::new("Couldn't load chunk!"));
        }
    }
    writer.ok();
    Ok(())
}
