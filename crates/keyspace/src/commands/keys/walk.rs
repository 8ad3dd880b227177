//! KEYS, SCAN, RANDOMKEY and DBSIZE: look over a whole database.

use command::{Command, Flag, Group, Join, Refusal, Span};
use resp::{Args, Writer};

use crate::commands::arguments::{integer, is};
use crate::commands::{Body, DataCommand};
use crate::context::View;
use crate::glob::Filter;

pub const KEYS: DataCommand = Command {
    name: "keys",
    since: "1.0.0",
    group: Group::Generic,
    summary: "Find all keys matching the given pattern.",
    complexity: "O(N) where N is the number of keys in the database.",
    syntax: "pattern",
    arity: 2,
    flags: &[Flag::Readonly],
    categories: &["keyspace", "dangerous"],
    keys: &[],
    tips: &["request_policy:all_shards", "nondeterministic_output_order"],
    span: Span::Whole(Join::Concatenate),
    subcommands: &[],
    body: Body::Query(keys),
};

pub const SCAN: DataCommand = Command {
    name: "scan",
    since: "2.8.0",
    group: Group::Generic,
    summary: "Incrementally iterate the keys space.",
    complexity: "O(1) for every call, O(N) from cursor 0 until it returns, where N is the number of keys.",
    syntax: "cursor [MATCH pattern] [COUNT count] [TYPE type]",
    arity: -2,
    flags: &[Flag::Readonly],
    categories: &["keyspace"],
    keys: &[],
    tips: &["nondeterministic_output", "request_policy:special"],
    span: Span::Whole(Join::Cursor),
    subcommands: &[],
    body: Body::Query(scan),
};

pub const RANDOMKEY: DataCommand = Command {
    name: "randomkey",
    since: "1.0.0",
    group: Group::Generic,
    summary: "Return a random key from the keyspace.",
    complexity: "O(1)",
    syntax: "",
    arity: 1,
    flags: &[Flag::Readonly],
    categories: &["keyspace"],
    keys: &[],
    tips: &["request_policy:all_shards", "nondeterministic_output"],
    span: Span::Whole(Join::Any),
    subcommands: &[],
    body: Body::Query(random_key),
};

pub const DBSIZE: DataCommand = Command {
    name: "dbsize",
    since: "1.0.0",
    group: Group::Server,
    summary: "Return the number of keys in the selected database.",
    complexity: "O(1)",
    syntax: "",
    arity: 1,
    flags: &[Flag::Readonly, Flag::Fast],
    categories: &["keyspace"],
    keys: &[],
    tips: &["request_policy:all_shards", "response_policy:agg_sum"],
    span: Span::Whole(Join::Sum),
    subcommands: &[],
    body: Body::Query(count_keys),
};

/// Keys that one step of SCAN looks at unless COUNT says otherwise.
const COUNT_DEFAULT: i64 = 10;

/// The cursor in a request, as `strtoul` would read it: a sign is allowed, and no digits at all are a zero.
///
/// # Errors
/// Redis's refusal of what is no number of 64 bits.
pub fn parse_cursor(word: &[u8]) -> Result<u64, Refusal> {
    let invalid = || Refusal::new("ERR invalid cursor");
    if word.is_empty() {
        return Ok(0);
    }
    let (negative, digits) = match word {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    if digits.is_empty() {
        return Err(invalid());
    }
    let magnitude = digits.iter().try_fold(0u64, |magnitude, &digit| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        magnitude.checked_mul(10)?.checked_add(digit)
    });
    let magnitude = magnitude.ok_or_else(invalid)?;
    Ok(if negative { magnitude.wrapping_neg() } else { magnitude })
}

/// Keys on their way into an array whose length is known only at the end.
struct Found {
    names: Writer,
    count: usize,
}

impl Found {
    fn new(writer: &Writer) -> Self {
        Self { names: Writer::new(writer.protocol()), count: 0 }
    }

    fn push(&mut self, key: &[u8]) {
        self.names.bulk(key);
        self.count += 1;
    }

    fn write(self, writer: &mut Writer) {
        writer.array(self.count);
        writer.raw(self.names.bytes());
    }
}

fn keys(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let filter = Filter::new(args.at(1));
    let mut found = Found::new(writer);
    view.for_each(|entry| {
        if filter.selects(entry.key()) {
            found.push(entry.key());
        }
    });
    found.write(writer);
    Ok(())
}

/// The words of SCAN behind its cursor.
struct ScanOptions<'a> {
    filter: Filter<'a>,
    count: usize,
    type_name: Option<&'a [u8]>,
}

fn scan_options(args: Args<'_>) -> Result<ScanOptions<'_>, Refusal> {
    let (mut filter, mut count, mut type_name) = (Filter::All, COUNT_DEFAULT, None);
    let mut next = 2;
    while let Some(option) = args.get(next) {
        let value = args.get(next + 1).ok_or(Refusal::SYNTAX)?;
        if is(option, "count") {
            count = integer(value)?;
            if count < 1 {
                return Err(Refusal::SYNTAX);
            }
        } else if is(option, "match") {
            filter = Filter::new(value);
        } else if is(option, "type") {
            type_name = Some(value);
        } else {
            return Err(Refusal::SYNTAX);
        }
        next += 2;
    }
    Ok(ScanOptions { filter, count: usize::try_from(count).unwrap_or(usize::MAX), type_name })
}

/// How many keys a step of SCAN is to look at.
///
/// # Errors
/// As SCAN refuses its options.
pub fn scan_count(args: Args<'_>) -> Result<usize, Refusal> {
    Ok(scan_options(args)?.count)
}

fn scan(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let cursor = parse_cursor(args.at(1))?;
    let ScanOptions { filter, count, type_name } = scan_options(args)?;
    let mut found = Found::new(writer);
    let cursor = view.scan(cursor, count, |entry| {
        if filter.selects(entry.key()) && type_name.is_none_or(|name| is(name, entry.type_name())) {
            found.push(entry.key());
        }
    });
    writer.array(2);
    writer.bulk(cursor.to_string().as_bytes());
    found.write(writer);
    Ok(())
}

fn random_key(view: &View<'_>, _: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    writer.bulk_or_null(view.random_key());
    Ok(())
}

fn count_keys(view: &View<'_>, _: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    writer.count(view.key_count());
    Ok(())
}
