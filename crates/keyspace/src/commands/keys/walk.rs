//! KEYS, SCAN, RANDOMKEY and DBSIZE: look over a whole database. CLUSTERSCAN looks over one slot after the other.

use command::{Access, Begin, Command, Find, Flag, Group, Join, KeySpec, Refusal, Span};
use resp::{Args, Writer};
use stdx::slot::{SLOT_COUNT, Slot, slot_of, slot_of_pattern, tag_of};

use crate::commands::arguments::{integer, is, parse_integer};
use crate::commands::{Body, DataCommand};
use crate::context::{Entry, View};
use crate::glob::Filter;
use crate::scan::{cursor_at_slot, slot_of_cursor};

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
    tips: &["nondeterministic_output", "request_policy:special", "response_policy:special"],
    span: Span::Whole(Join::Cursor),
    subcommands: &[],
    body: Body::Query(scan),
};

pub const CLUSTERSCAN: DataCommand = Command {
    name: "clusterscan",
    since: "9.1.0",
    group: Group::Cluster,
    summary: "Iterates over the keys of all slots, in steps that the node of one slot answers.",
    complexity: "O(N) where N is the number of keys that a step looks at.",
    syntax: "cursor [MATCH pattern] [COUNT count] [TYPE type] [SLOT slot]",
    arity: -2,
    flags: &[Flag::Readonly, Flag::Noscript, Flag::NoMulti],
    categories: &["keyspace"],
    keys: &[KeySpec {
        access: Access::NotKey,
        begin: Begin::Cursor(1),
        find: Find::Range { last: 0, step: 1, limit: 0 },
        notes: &[],
    }],
    tips: &["nondeterministic_output"],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(cluster_scan),
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
    tips: &["request_policy:all_shards", "response_policy:special", "nondeterministic_output"],
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

/// Keys on their way into an array. Its length is known only at the end.
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

    /// Writes the reply of a step of a walk.
    fn write_step(self, cursor: &str, writer: &mut Writer) {
        writer.array(2);
        writer.bulk(cursor.as_bytes());
        self.write(writer);
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
    pattern: Option<&'a [u8]>,
    count: usize,
    type_name: Option<&'a [u8]>,
    /// Of CLUSTERSCAN.
    slot: Option<Slot>,
}

impl ScanOptions<'_> {
    fn selects(&self, entry: &Entry<'_>) -> bool {
        self.filter.selects(entry.key()) && self.type_name.is_none_or(|name| is(name, entry.type_name()))
    }
}

fn scan_options(args: Args<'_>, takes_slot: bool) -> Result<ScanOptions<'_>, Refusal> {
    let (mut filter, mut pattern, mut count, mut type_name) = (Filter::All, None, COUNT_DEFAULT, None);
    let mut slot = None;
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
            pattern = Some(value);
        } else if is(option, "type") {
            type_name = Some(value);
        } else if takes_slot && is(option, "slot") {
            if slot.is_some() {
                return Err(Refusal::new("ERR SLOT option can only be specified once"));
            }
            let number = parse_integer(value).and_then(|number| u16::try_from(number).ok());
            let number = number.filter(|&number| usize::from(number) < SLOT_COUNT);
            slot = Some(Slot(number.ok_or(Refusal::new("ERR Invalid or out of range slot"))?));
        } else {
            return Err(Refusal::SYNTAX);
        }
        next += 2;
    }
    Ok(ScanOptions { filter, pattern, count: usize::try_from(count).unwrap_or(usize::MAX), type_name, slot })
}

/// How many keys a step of SCAN must look at.
///
/// # Errors
/// As SCAN refuses its options.
pub fn scan_count(args: Args<'_>) -> Result<usize, Refusal> {
    Ok(scan_options(args, false)?.count)
}

fn scan(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let cursor = parse_cursor(args.at(1))?;
    let options = scan_options(args, false)?;
    let mut found = Found::new(writer);
    let cursor = view.scan(cursor, options.count, |entry| {
        if options.selects(&entry) {
            found.push(entry.key());
        }
    });
    found.write_step(&cursor.to_string(), writer);
    Ok(())
}

/// A place in a walk through all slots: one of Valkey's cursors, `fingerprint-{tag}-place`.
struct WalkCursor {
    slot: Slot,
    /// Where in the slot: in the lowest bits as in SCAN's cursor.
    place: u64,
}

impl WalkCursor {
    /// Where a slot begins.
    fn beginning(slot: Slot) -> Self {
        Self { slot, place: 0 }
    }

    /// `None` for the 0 that begins a walk. A place in an order of another server begins the slot again.
    ///
    /// # Errors
    /// What is no cursor.
    fn parse(word: &[u8], fingerprint: u32) -> Result<Option<Self>, Refusal> {
        if word == b"0" {
            return Ok(None);
        }
        let parsed = || {
            let (print, rest) = std::str::from_utf8(word).ok()?.split_once("-{")?;
            let (tag, place) = rest.split_once("}-")?;
            let is_tag = !tag.is_empty() && !tag.contains(['{', '}']);
            let is_print = !print.is_empty() && !print.contains(['{', '}']);
            let is_number = !place.is_empty() && place.bytes().all(|byte| byte.is_ascii_digit());
            let place: u64 = if is_number { place.parse().ok()? } else { return None };
            let is_ours = print == printed(fingerprint) && place < cursor_at_slot(1);
            let place = if is_ours { place } else { 0 };
            (is_tag && is_print).then(|| Self { slot: slot_of(word), place })
        };
        parsed().map(Some).ok_or(Refusal::new("ERR Invalid cursor"))
    }

    fn print(&self, fingerprint: u32) -> String {
        // The beginning of a slot is the same in every order.
        let print = if self.place == 0 { "0".to_owned() } else { printed(fingerprint) };
        format!("{print}-{{{}}}-{}", tag_of(self.slot), self.place)
    }
}

fn printed(fingerprint: u32) -> String {
    format!("{fingerprint:08x}")
}

fn cluster_scan(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let fingerprint = view.keyspace().fingerprint();
    let options = scan_options(args, true)?;
    let cursor = WalkCursor::parse(args.at(1), fingerprint)?;
    if let (Some(cursor), Some(slot)) = (&cursor, options.slot)
        && cursor.slot != slot
    {
        return Err(Refusal::new("ERR Cursor slot mismatch"));
    }
    let found = Found::new(writer);
    // All that the pattern may select is there.
    let only = options.pattern.and_then(slot_of_pattern);
    let only = match (options.slot, only) {
        (Some(slot), Some(other)) if slot != other => {
            found.write_step("0", writer);
            return Ok(());
        }
        (slot, other) => slot.or(other),
    };
    let cursor = match (cursor, only) {
        (None, _) => Err(Some(only.unwrap_or(Slot(0)))),
        (Some(cursor), Some(only)) if cursor.slot > only => Err(None),
        (Some(cursor), Some(only)) if cursor.slot < only => Err(Some(only)),
        (Some(cursor), _) => Ok(cursor),
    };
    match cursor {
        Ok(cursor) => walk_on(view, &cursor, only, &options, found, writer),
        // To where another node may have to be asked, or to the end.
        Err(slot) => {
            let next = slot.map_or("0".into(), |slot| WalkCursor::beginning(slot).print(fingerprint));
            found.write_step(&next, writer);
        }
    }
    Ok(())
}

/// Goes on through the slots from a cursor on, as far as one group holds them.
fn walk_on(
    view: &View<'_>,
    cursor: &WalkCursor,
    only: Option<Slot>,
    options: &ScanOptions<'_>,
    mut found: Found,
    writer: &mut Writer,
) {
    let keyspace = view.keyspace();
    let end = only.map_or_else(|| keyspace.end_of_run(cursor.slot), |only| usize::from(only.0) + 1);
    let start = cursor_at_slot(cursor.slot.0.into()) | cursor.place;
    let next = view.scan_up_to(end, start, options.count, |entry| {
        if options.selects(&entry) {
            found.push(entry.key());
        }
    });
    let next = match next {
        0 if only.is_some() || end == SLOT_COUNT => None,
        0 => Some(WalkCursor::beginning(Slot(end as u16))),
        next => Some(WalkCursor { slot: slot_of_cursor(next), place: next & (cursor_at_slot(1) - 1) }),
    };
    found.write_step(&next.map_or("0".into(), |next| next.print(keyspace.fingerprint())), writer);
}

fn random_key(view: &View<'_>, _: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    writer.bulk_or_null(view.random_key());
    Ok(())
}

fn count_keys(view: &View<'_>, _: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    writer.count(view.key_count());
    Ok(())
}
