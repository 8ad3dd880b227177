//! t-digests.

use command::{Access, Flag, Group, Refusal};
use resp::{Args, Writer};

use super::{CHANGED_KEY, GROWING, MADE_KEY, PLAIN, double, find_as, number, write_double};
use crate::commands::arguments::{is, parse_integer};
use crate::commands::key_specs::{counted_keys, key_at};
use crate::commands::{Body, DataCommand};
use crate::sketch::Sketch;
use crate::sketch::digest::Digest;
use crate::{Edit, View};

pub(super) const COMMANDS: &[&DataCommand] = &[
    &CREATE,
    &ADD,
    &RESET,
    &MERGE,
    &MIN,
    &MAX,
    &QUANTILE,
    &CDF,
    &RANK,
    &REVRANK,
    &BYRANK,
    &BYREVRANK,
    &TRIMMED_MEAN,
    &INFO,
];

const READING: DataCommand =
    DataCommand { since: "2.4.0", group: Group::Digest, flags: &[Flag::Readonly, Flag::Fast], ..PLAIN };
const CHANGING: DataCommand = DataCommand { flags: GROWING, keys: CHANGED_KEY, ..READING };

const DEFAULT_COMPRESSION: u64 = 100;

find_as!(digest, Digest, Digest);

fn no_key() -> Refusal {
    Refusal::new("ERR T-Digest: key does not exist")
}

fn overflow() -> Refusal {
    Refusal::new("ERR T-Digest: overflow detected")
}

fn wrong_keyword() -> Refusal {
    Refusal::new("ERR T-Digest: wrong keyword")
}

/// A new digest of a compression that a word says.
fn with_compression(word: &[u8]) -> Result<Digest, Refusal> {
    let compression = number(word, "ERR T-Digest: error parsing compression parameter")?;
    let compression = u64::try_from(compression).ok().filter(|&compression| compression > 0);
    let text = "ERR T-Digest: compression parameter needs to be a positive integer";
    empty(compression.ok_or(Refusal::new(text))?)
}

fn empty(compression: u64) -> Result<Digest, Refusal> {
    Digest::new(compression).ok_or(Refusal::new("ERR T-Digest: allocation failed"))
}

const CREATE: DataCommand = DataCommand {
    name: "tdigest.create",
    summary: "Creates an empty t-digest.",
    syntax: "key [COMPRESSION compression]",
    arity: -2,
    keys: MADE_KEY,
    body: Body::Mutate(|edit, args, writer| {
        if args.len() != 2 && args.len() != 4 {
            return Err(Refusal::wrong_arity("tdigest.create"));
        }
        if digest(&edit.view(), args.at(1))?.is_some() {
            return Err(Refusal::new("ERR T-Digest: key already exists"));
        }
        let new = match args.get(2) {
            None => empty(DEFAULT_COMPRESSION)?,
            Some(word) if is(word, "compression") => with_compression(args.at(3))?,
            Some(_) => return Err(wrong_keyword()),
        };
        edit.set_sketch(args.at(1), Sketch::Digest(new))?;
        writer.ok();
        Ok(())
    }),
    ..CHANGING
};

const ADD: DataCommand = DataCommand {
    name: "tdigest.add",
    summary: "Adds values to a t-digest.",
    complexity: "O(n) where n is the number of values.",
    syntax: "key value [value ...]",
    arity: -3,
    body: Body::Mutate(add),
    ..CHANGING
};

fn add(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    digest(&edit.view(), args.at(1))?.ok_or_else(no_key)?;
    let mut values = Vec::new();
    for word in args.iter().skip(2) {
        let value = double(word, "ERR T-Digest: error parsing val parameter")?;
        if !value.is_finite() {
            return Err(Refusal::new("ERR T-Digest: val parameter needs to be a finite number"));
        }
        values.push(value);
    }
    let added = edit.change_sketch(args.at(1), |sketch| match sketch {
        Sketch::Digest(digest) => values.iter().try_for_each(|value| digest.add(*value, 1)),
        _ => Ok(()),
    })?;
    added.map_err(|_| overflow())?;
    writer.ok();
    Ok(())
}

const RESET: DataCommand = DataCommand {
    name: "tdigest.reset",
    summary: "Empties a t-digest.",
    body: Body::Mutate(|edit, args, writer| {
        let compression = digest(&edit.view(), args.at(1))?.ok_or_else(no_key)?.compression;
        edit.set_sketch(args.at(1), Sketch::Digest(empty(compression as u64)?))?;
        writer.ok();
        Ok(())
    }),
    ..CHANGING
};

const MERGE: DataCommand = DataCommand {
    name: "tdigest.merge",
    summary: "Merges t-digests into one, and creates it if there is none.",
    complexity: "O(n) where n is the number of nodes of all digests.",
    syntax: "destination-key numkeys source-key [source-key ...] [COMPRESSION compression] [OVERRIDE]",
    arity: -4,
    keys: &[key_at(1, Access::ReadWrite, &["access", "update"]), counted_keys(2, Access::Read, &["access"])],
    body: Body::Mutate(merge),
    ..CHANGING
};

fn merge(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let wrong_arity = || Refusal::wrong_arity("tdigest.merge");
    let view = edit.view();
    let mut destination = digest(&view, args.at(1))?;
    let count = number(args.at(2), "ERR T-Digest: error parsing numkeys")?;
    let count = usize::try_from(count).ok().filter(|&count| count > 0);
    let count = count.ok_or(Refusal::new("ERR T-Digest: numkeys needs to be a positive integer"))?;
    if count > args.len() - 3 {
        return Err(wrong_arity());
    }
    let (mut wanted, mut overrides) = (None, false);
    let mut at = 3 + count;
    while let Some(word) = args.get(at) {
        if is(word, "override") {
            overrides = true;
        } else if is(word, "compression") {
            at += 1;
            wanted = Some(with_compression(args.get(at).ok_or_else(wrong_arity)?)?);
        } else {
            return Err(wrong_keyword());
        }
        at += 1;
    }
    let sources = args.iter().skip(3).take(count);
    let sources: Vec<_> = sources.map(|key| digest(&view, key)?.ok_or_else(no_key)).collect::<Result<_, Refusal>>()?;
    if overrides {
        destination = None;
    }
    let mut merged = match (wanted, &destination) {
        (Some(wanted), _) => wanted,
        (None, Some(destination)) => empty(destination.compression as u64)?,
        (None, None) => empty(sources.iter().map(|source| source.compression as u64).max().unwrap_or_default())?,
    };
    for source in destination.iter().chain(&sources) {
        merged.merge(source).map_err(|_| overflow())?;
    }
    drop((sources, destination));
    edit.set_sketch(args.at(1), Sketch::Digest(merged))?;
    writer.ok();
    Ok(())
}

const MIN: DataCommand = DataCommand {
    name: "tdigest.min",
    summary: "Returns the least value that was added to a t-digest.",
    body: Body::Query(|view, args, writer| {
        let digest = digest(view, args.at(1))?.ok_or_else(no_key)?;
        write_double(writer, if digest.size() > 0 { digest.min } else { f64::NAN });
        Ok(())
    }),
    ..READING
};

const MAX: DataCommand = DataCommand {
    name: "tdigest.max",
    summary: "Returns the greatest value that was added to a t-digest.",
    body: Body::Query(|view, args, writer| {
        let digest = digest(view, args.at(1))?.ok_or_else(no_key)?;
        write_double(writer, if digest.size() > 0 { digest.max } else { f64::NAN });
        Ok(())
    }),
    ..READING
};

const QUANTILE: DataCommand = DataCommand {
    name: "tdigest.quantile",
    summary: "Returns, for each share, the value that this share of all values is below.",
    complexity: "O(n) where n is the number of nodes.",
    syntax: "key quantile [quantile ...]",
    arity: -3,
    body: Body::Query(quantile),
    ..READING
};

fn quantile(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let digest = digest(view, args.at(1))?.ok_or_else(no_key)?;
    let mut shares = Vec::new();
    for word in args.iter().skip(2) {
        let share = double(word, "ERR T-Digest: error parsing quantile")?;
        if !(0.0..=1.0).contains(&share) {
            return Err(Refusal::new("ERR T-Digest: quantile should be in [0,1]"));
        }
        shares.push(share);
    }
    let digest = digest.compressed();
    writer.array(shares.len());
    for rising in shares.chunk_by(|left, right| left <= right) {
        digest.quantiles(rising).into_iter().for_each(|value| write_double(writer, value));
    }
    Ok(())
}

const CDF: DataCommand = DataCommand {
    name: "tdigest.cdf",
    summary: "Returns, for each value, the share of values that are less, and half of those that equal it.",
    complexity: "O(n) where n is the number of nodes.",
    syntax: "key value [value ...]",
    arity: -3,
    body: Body::Query(|view, args, writer| {
        let digest = digest(view, args.at(1))?.ok_or_else(no_key)?;
        let values = doubles(args, "ERR T-Digest: error parsing cdf")?;
        let digest = digest.compressed();
        writer.array(values.len());
        values.into_iter().for_each(|value| write_double(writer, digest.share_below(value)));
        Ok(())
    }),
    ..READING
};

fn doubles(args: Args<'_>, complaint: &'static str) -> Result<Vec<f64>, Refusal> {
    args.iter().skip(2).map(|word| double(word, complaint)).collect()
}

/// From which end ranks are counted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum From {
    Least,
    Greatest,
}

const RANK: DataCommand = DataCommand {
    name: "tdigest.rank",
    summary: "Returns, for each value, how many values are less, and half of those that equal it.",
    body: Body::Query(|view, args, writer| rank(view, args, writer, From::Least)),
    ..CDF
};

const REVRANK: DataCommand = DataCommand {
    name: "tdigest.revrank",
    summary: "Returns, for each value, how many values are greater, and half of those that equal it.",
    body: Body::Query(|view, args, writer| rank(view, args, writer, From::Greatest)),
    ..CDF
};

fn rank(view: &View<'_>, args: Args<'_>, writer: &mut Writer, from: From) -> Result<(), Refusal> {
    let digest = digest(view, args.at(1))?.ok_or_else(no_key)?;
    let values = doubles(args, "ERR T-Digest: error parsing value")?;
    let digest = digest.compressed();
    let size = digest.size();
    let is_reverse = from == From::Greatest;
    writer.array(values.len());
    for value in values {
        let rank = if size == 0 {
            -2
        } else if value < digest.min {
            if is_reverse { size } else { -1 }
        } else if value > digest.max {
            if is_reverse { -1 } else { size }
        } else {
            let below = digest.share_below(value) * size as f64;
            if is_reverse { (size as f64 - below.round()).round() as i64 } else { round_half_down(below) as i64 }
        };
        writer.integer(rank);
    }
    Ok(())
}

fn round_half_down(number: f64) -> f64 {
    if number.fract().abs() <= 0.5 { number.trunc() } else { number.trunc() + number.signum() }
}

const BYRANK: DataCommand = DataCommand {
    name: "tdigest.byrank",
    summary: "Returns the value at each rank, counted from the least.",
    complexity: "O(n) where n is the number of nodes.",
    syntax: "key rank [rank ...]",
    arity: -3,
    body: Body::Query(|view, args, writer| by_rank(view, args, writer, From::Least)),
    ..READING
};

const BYREVRANK: DataCommand = DataCommand {
    name: "tdigest.byrevrank",
    summary: "Returns the value at each rank, counted from the greatest.",
    syntax: "key reverse_rank [reverse_rank ...]",
    body: Body::Query(|view, args, writer| by_rank(view, args, writer, From::Greatest)),
    ..BYRANK
};

fn by_rank(view: &View<'_>, args: Args<'_>, writer: &mut Writer, from: From) -> Result<(), Refusal> {
    let digest = digest(view, args.at(1))?.ok_or_else(no_key)?;
    let mut ranks = Vec::new();
    for word in args.iter().skip(2) {
        let rank = parse_integer(word).ok_or(Refusal::new("ERR T-Digest: error parsing rank"))?;
        if rank < 0 {
            return Err(Refusal::new("ERR T-Digest: rank needs to be non negative"));
        }
        ranks.push(rank);
    }
    let digest = digest.compressed();
    let size = digest.size();
    let is_reverse = from == From::Greatest;
    writer.array(ranks.len());
    for rank in ranks {
        let value = if size == 0 {
            f64::NAN
        } else if rank == 0 {
            if is_reverse { digest.max } else { digest.min }
        } else if rank >= size {
            if is_reverse { f64::NEG_INFINITY } else { f64::INFINITY }
        } else {
            let rank = if is_reverse { size - rank - 1 } else { rank };
            digest.quantile(rank as f64 / size as f64)
        };
        write_double(writer, value);
    }
    Ok(())
}

const TRIMMED_MEAN: DataCommand = DataCommand {
    name: "tdigest.trimmed_mean",
    summary: "Returns the mean of the values between two shares.",
    complexity: "O(n) where n is the number of nodes.",
    syntax: "key low_cut_quantile high_cut_quantile",
    arity: 4,
    flags: &[Flag::Readonly],
    body: Body::Query(|view, args, writer| {
        let digest = digest(view, args.at(1))?.ok_or_else(no_key)?;
        let low = double(args.at(2), "ERR T-Digest: error parsing low_cut_percentile")?;
        let high = double(args.at(3), "ERR T-Digest: error parsing high_cut_percentile")?;
        if !(0.0..=1.0).contains(&low) || !(0.0..=1.0).contains(&high) {
            let text = "ERR T-Digest: low_cut_percentile and high_cut_percentile should be in [0,1]";
            return Err(Refusal::new(text));
        }
        if low >= high {
            let text = "ERR T-Digest: low_cut_percentile should be lower than high_cut_percentile";
            return Err(Refusal::new(text));
        }
        write_double(writer, digest.compressed().trimmed_mean(low, high));
        Ok(())
    }),
    ..READING
};

/// Bytes that RedisBloom counts for a digest, and for each node that it may have.
const DIGEST_BYTES: usize = 80;
const NODE_BYTES: usize = 16;

const INFO: DataCommand = DataCommand {
    name: "tdigest.info",
    summary: "Describes a t-digest.",
    body: Body::Query(|view, args, writer| {
        let digest = digest(view, args.at(1))?.ok_or_else(no_key)?;
        let fields = [
            ("Compression", digest.compression as i64),
            ("Capacity", digest.capacity() as i64),
            ("Merged nodes", digest.merged as i64),
            ("Unmerged nodes", digest.unmerged() as i64),
            ("Merged weight", digest.merged_weight),
            ("Unmerged weight", digest.unmerged_weight),
            ("Observations", digest.size()),
            ("Total compressions", digest.compressions as i64),
            ("Memory usage", (DIGEST_BYTES + NODE_BYTES * digest.capacity()) as i64),
        ];
        writer.map(fields.len());
        for (name, value) in fields {
            writer.simple(name);
            writer.integer(value);
        }
        Ok(())
    }),
    ..READING
};
