//! HyperLogLogs: strings that know how many different elements were added to them.

use command::{Access, Begin, Find, Flag, Group, KeySpec, Refusal, Span};
use resp::{Args, Writer};

use super::arguments::is;
use super::string::first_key;
use super::{Body, DataCommand};
use crate::hyperloglog::{self, Form, REGISTERS, Registers, Sketch, Trace};
use crate::value::Str;
use crate::{Class, Edit, Keyspace, View};

/// Every command on HyperLogLogs.
pub(super) const COMMANDS: &[&DataCommand] = &[&PFADD, &PFCOUNT, &PFMERGE, &PFDEBUG, &PFSELFTEST];

const PFADD: DataCommand = DataCommand {
    name: "pfadd",
    since: "2.8.9",
    group: Group::Hyperloglog,
    summary: "Adds elements to a HyperLogLog, and returns whether its estimate may have changed.",
    complexity: "O(1) for each element.",
    syntax: "key [element ...]",
    arity: -2,
    flags: &[Flag::Write, Flag::Denyoom, Flag::Fast],
    categories: &[],
    keys: &[first_key(Access::ReadWrite, &["insert"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(pfadd),
};

fn pfadd(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let key = args.at(1);
    let sparse_bytes_max = sparse_bytes_max(edit.keyspace());
    let mut traces = args.iter().skip(2).map(Trace::of);
    let stored = edit.string(key)?;
    let changed = match stored.map(sketch_in).transpose()? {
        Some(sketch) if sketch.form() == Form::Dense => {
            // Most elements have been seen before; a copy would be large.
            let fresh = hyperloglog::fresh_in_dense(sketch, traces);
            let is_higher = !fresh.is_empty();
            is_higher.then(|| {
                edit.modify_string(key, |bytes| {
                    hyperloglog::add_to_dense(bytes, &fresh);
                    hyperloglog::forget_estimate(bytes);
                });
            })
        }
        sketch => {
            let mut bytes = sketch.map_or_else(hyperloglog::empty, Sketch::to_vec);
            let is_higher = traces.try_fold(sketch.is_none(), |before, trace| {
                hyperloglog::add(&mut bytes, trace, sparse_bytes_max).map(|is_higher| before | is_higher)
            })?;
            is_higher.then(|| {
                hyperloglog::forget_estimate(&mut bytes);
                edit.modify_string(key, |old| *old = bytes);
            })
        }
    };
    if changed.is_some() {
        edit.notify(Class::String, "pfadd", key);
    }
    writer.integer(i64::from(changed.is_some()));
    Ok(())
}

/// Longest sparse form.
fn sparse_bytes_max(keyspace: &Keyspace) -> usize {
    keyspace.limits().sparse_sketch_bytes as usize
}

/// The sketch that a string is.
fn sketch_in(string: Str<'_>) -> Result<Sketch<'_>, Refusal> {
    match string {
        Str::Bytes(bytes) => Sketch::new(bytes),
        Str::Integer(_) => Err(Refusal::NOT_A_SKETCH),
    }
}

const PFCOUNT: DataCommand = DataCommand {
    name: "pfcount",
    since: "2.8.9",
    group: Group::Hyperloglog,
    summary: "Estimates how many different elements have been added to HyperLogLogs together.",
    complexity: "O(N) where N is the number of keys; O(1) for a single key with which an estimate is kept.",
    syntax: "key [key ...]",
    arity: -2,
    flags: &[Flag::Readonly],
    categories: &[],
    keys: &[KeySpec {
        access: Access::ReadWrite,
        begin: Begin::Index(1),
        find: Find::Range { last: -1, step: 1, limit: 0 },
        notes: &[
            "access",
            "RW because it may change the internal representation of the key, and propagate to replicas",
        ],
    }],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(pfcount),
};

fn pfcount(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    writer.integer(estimate(view, args)? as i64);
    Ok(())
}

/// How many different elements were added to the sketches that a PFCOUNT names, together.
fn estimate(view: &View<'_>, args: Args<'_>) -> Result<u64, Refusal> {
    if args.len() > 2 {
        let mut union = Registers::new();
        for key in args.iter().skip(1) {
            if let Some(string) = view.string(key)? {
                sketch_in(string)?.merge_into(&mut union)?;
            }
        }
        return Ok(union.count());
    }
    let Some(string) = view.string(args.at(1))? else { return Ok(0) };
    let sketch = sketch_in(string)?;
    // RESTORE and SET bring sketches with which another server has kept it.
    sketch.estimate().map_or_else(|| sketch.count(), Ok)
}

/// PFCOUNT as it was at level 1: it keeps a new estimate in the string, on every replica, and so is logged.
pub(super) static PFCOUNT_OF_LEVEL_1: DataCommand = DataCommand { body: Body::Mutate(pfcount_keeping), ..PFCOUNT };

fn pfcount_keeping(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let number = estimate(&edit.reading(), args)?;
    if args.len() == 2 {
        let key = args.at(1);
        let sketch = edit.string(key)?.map(sketch_in).transpose()?;
        if sketch.is_some_and(|sketch| sketch.estimate().is_none()) {
            edit.modify_string(key, |bytes| hyperloglog::keep_estimate(bytes, number));
        }
    }
    writer.integer(number as i64);
    Ok(())
}

const PFMERGE: DataCommand = DataCommand {
    name: "pfmerge",
    since: "2.8.9",
    group: Group::Hyperloglog,
    summary: "Merges HyperLogLogs into one.",
    complexity: "O(N) where N is the number of HyperLogLogs, each as costly as all of its registers.",
    syntax: "destkey [sourcekey ...]",
    arity: -2,
    flags: &[Flag::Write, Flag::Denyoom],
    categories: &[],
    keys: &[
        first_key(Access::ReadWrite, &["access", "insert"]),
        KeySpec {
            access: Access::Read,
            begin: Begin::Index(2),
            find: Find::Range { last: -1, step: 1, limit: 0 },
            notes: &["access"],
        },
    ],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(pfmerge),
};

fn pfmerge(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let mut union = Registers::new();
    let mut is_dense = false;
    for key in args.iter().skip(1) {
        if let Some(string) = edit.reading().string(key)? {
            let sketch = sketch_in(string)?;
            is_dense |= sketch.form() == Form::Dense;
            sketch.merge_into(&mut union)?;
        }
    }
    let key = args.at(1);
    let mut bytes = edit.string(key)?.map_or_else(hyperloglog::empty, |string| string.to_vec());
    if is_dense {
        hyperloglog::to_dense(&mut bytes)?;
    }
    let sparse_bytes_max = sparse_bytes_max(edit.keyspace());
    for trace in union.traces() {
        hyperloglog::add(&mut bytes, trace, sparse_bytes_max)?;
    }
    hyperloglog::forget_estimate(&mut bytes);
    edit.modify_string(key, |old| *old = bytes);
    edit.notify(Class::String, "pfadd", key);
    writer.ok();
    Ok(())
}

const PFDEBUG: DataCommand = DataCommand {
    name: "pfdebug",
    since: "2.8.9",
    group: Group::Hyperloglog,
    summary: "Shows how a HyperLogLog is stored: GETREG registers, DECODE runs, ENCODING its form; TODENSE changes that.",
    complexity: "O(N) where N is the number of registers.",
    syntax: "subcommand key",
    arity: 3,
    flags: &[Flag::Write, Flag::Denyoom, Flag::Admin],
    categories: &[],
    keys: &[KeySpec {
        access: Access::ReadWrite,
        begin: Begin::Index(2),
        find: Find::Range { last: 0, step: 1, limit: 0 },
        notes: &["access"],
    }],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(pfdebug),
};

fn pfdebug(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let (word, key) = (args.at(1), args.at(2));
    let string = edit.string(key)?.ok_or(Refusal::new("ERR The specified key does not exist"))?;
    let sketch = sketch_in(string)?;
    if is(word, "getreg") {
        let mut registers = Registers::new();
        sketch.merge_into(&mut registers)?;
        // As in Redis, looking at the registers makes them dense.
        make_dense(edit, key)?;
        writer.array(REGISTERS);
        registers.iter().for_each(|register| writer.integer(register.into()));
    } else if is(word, "decode") {
        if sketch.form() == Form::Dense {
            return Err(Refusal::new("ERR HLL encoding is not sparse"));
        }
        writer.bulk(sketch.describe().as_bytes());
    } else if is(word, "encoding") {
        writer.simple(sketch.form().name());
    } else if is(word, "todense") {
        let changed = make_dense(edit, key)?;
        writer.integer(i64::from(changed));
    } else {
        let word = String::from_utf8_lossy(word);
        return Err(Refusal::new(format!("ERR Unknown PFDEBUG subcommand '{word}'")));
    }
    Ok(())
}

/// Makes the sketch under a key dense; false if it was.
fn make_dense(edit: &mut Edit<'_>, key: &[u8]) -> Result<bool, Refusal> {
    let Some(mut bytes) = edit.string(key)?.map(|string| string.to_vec()) else { return Ok(false) };
    let changed = hyperloglog::to_dense(&mut bytes)?;
    if changed {
        edit.modify_string(key, |old| *old = bytes);
    }
    Ok(changed)
}

const PFSELFTEST: DataCommand = DataCommand {
    name: "pfselftest",
    since: "2.8.9",
    group: Group::Hyperloglog,
    summary: "Tests whether estimates are right.",
    complexity: "O(N) where N is a fixed number of elements.",
    syntax: "",
    arity: 1,
    flags: &[Flag::Admin],
    categories: &[],
    keys: &[],
    tips: &[],
    span: Span::Nothing,
    subcommands: &[],
    body: Body::Query(pfselftest),
};

fn pfselftest(view: &View<'_>, _: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    /// So many that they are added within a few milliseconds.
    const ELEMENTS: u64 = 100_000;
    let sparse_bytes_max = sparse_bytes_max(view.keyspace());
    let mut prng = stdx::Prng::new(view.moment().seed);
    let (mut sparse, mut dense) = (hyperloglog::empty(), hyperloglog::empty());
    hyperloglog::to_dense(&mut dense)?;
    let mut look_at = 1;
    for nth in 1..=ELEMENTS {
        let trace = Trace::of(&prng.draw().to_le_bytes());
        hyperloglog::add(&mut sparse, trace, sparse_bytes_max)?;
        hyperloglog::add(&mut dense, trace, sparse_bytes_max)?;
        if nth < look_at {
            continue;
        }
        look_at *= 10;
        let count = Sketch::new(&dense)?.count()?;
        if Sketch::new(&sparse)?.count()? != count {
            return Err(Refusal::new("TESTFAILED dense/sparse disagree"));
        }
        // Six times the standard error of 1.04 / √registers.
        let error = count.abs_diff(nth);
        if error as f64 > (6.0 * 1.04 / (REGISTERS as f64).sqrt() * nth as f64).ceil() {
            return Err(Refusal::new(format!("TESTFAILED Too big error. card:{nth} abserr:{error}")));
        }
    }
    writer.ok();
    Ok(())
}
