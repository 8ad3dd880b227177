//! What commands do to keys, as seen from outside: which came to be, which were looked for in vain.
//!
//! Handlers report what they do themselves (`Edit::notify`); what follows from the versions of a command's keys before
//! and after it is found out here, once for all commands, and only while somebody wants to know.

use command::Access;
use keyspace::{Body, Class, DataCommand, Keyspace, Moment, Notice};
use resp::{Args, Writer};

/// Executes a command that only reads, and notes what was asked for.
///
/// # Panics
/// If it may change data.
#[inline]
pub fn read(
    keyspace: &mut Keyspace,
    database: u16,
    command: &DataCommand,
    args: Args<'_>,
    moment: Moment,
    writer: &mut Writer,
) {
    assert!(matches!(command.body, Body::Query(_)), "{} is no query", command.name);
    if keyspace.listens_to().has(Class::Miss) {
        note_misses(keyspace, database, command, args, moment);
    }
    keyspace.query(database, command, args, moment, writer);
}

/// Executes one command, whichever kind it is, and notes what was asked for.
#[inline]
pub fn run(
    keyspace: &mut Keyspace,
    database: u16,
    command: &DataCommand,
    args: Args<'_>,
    moment: Moment,
    writer: &mut Writer,
) {
    if keyspace.listens_to().has(Class::Miss) {
        note_misses(keyspace, database, command, args, moment);
    }
    match command.body {
        Body::Query(_) => keyspace.query(database, command, args, moment, writer),
        Body::Mutate(_) | Body::Container
            if keyspace.listens_to().has(Class::New) || keyspace.listens_to().has(Class::Changed) =>
        {
            run_watching(keyspace, database, command, args, moment, writer);
        }
        Body::Mutate(_) | Body::Container => keyspace.mutate(database, command, args, moment, writer),
    }
}

/// Name of the notice that all keys of a database have changed.
pub const FLUSHED: &str = "flushed";

/// Executes a command that may change data, and notes which of its keys it has created, and which it has changed.
fn run_watching(
    keyspace: &mut Keyspace,
    database: u16,
    command: &DataCommand,
    args: Args<'_>,
    moment: Moment,
    writer: &mut Writer,
) {
    let mut before = Vec::new();
    let databases = std::iter::once(database).chain(other_databases(command, args, keyspace.database_count()));
    for database in databases {
        command.for_each_key(args, |index, access| {
            let key = args.at(index);
            if access != Access::Read && !before.iter().any(|(known, other, _)| (*known, *other) == (database, key)) {
                before.push((database, key, keyspace.version(database, key, moment)));
            }
        });
    }
    let place = keyspace.notice_count();
    let start = writer.len();
    keyspace.mutate(database, command, args, moment, writer);
    let listens_to = keyspace.listens_to();
    for (database, key, old) in before.iter().copied().rev() {
        if listens_to.has(Class::New) && old == 0 && keyspace.version(database, key, moment) != 0 {
            // A key comes to be before anything else happens to it.
            keyspace.insert_notice(place, Notice { class: Class::New, name: "new", database, key: key.into() });
        }
    }
    for (database, key, old) in before {
        if listens_to.has(Class::Changed) && old != keyspace.version(database, key, moment) {
            note_changed(keyspace, "", database, key);
        }
    }
    let is_flush = matches!(command.name, "flushall" | "flushdb" | "swapdb");
    if is_flush && listens_to.has(Class::Changed) && writer.bytes()[start] != b'-' {
        note_changed(keyspace, FLUSHED, database, b"");
    }
}

/// Notes for caches that a key has changed, or with [`FLUSHED`] for its name, all keys.
pub(crate) fn note_changed(keyspace: &mut Keyspace, name: &'static str, database: u16, key: &[u8]) {
    let place = keyspace.notice_count();
    keyspace.insert_notice(place, Notice { class: Class::Changed, name, database, key: key.into() });
}

/// Notes which of the keys that a command is about to read do not exist.
pub(crate) fn note_misses(
    keyspace: &mut Keyspace,
    database: u16,
    command: &DataCommand,
    args: Args<'_>,
    moment: Moment,
) {
    if !matches!(command.body, Body::Query(_)) || command.walks() {
        return;
    }
    let mut missing = Vec::new();
    command.for_each_key(args, |index, _| {
        if keyspace.version(database, args.at(index), moment) == 0 {
            missing.push(args.at(index));
        }
    });
    for key in missing {
        let place = keyspace.notice_count();
        keyspace.insert_notice(place, Notice { class: Class::Miss, name: "keymiss", database, key: key.into() });
    }
}

/// The other databases that MOVE and COPY name, as far as they exist. COPY may name several, and heeds the last.
pub fn other_databases(command: &DataCommand, args: Args<'_>, databases: u16) -> Vec<u16> {
    let number = |index: usize| {
        let number = std::str::from_utf8(args.get(index)?).ok()?.parse().ok()?;
        (number < databases).then_some(number)
    };
    match command.name {
        "move" => number(2).into_iter().collect(),
        "copy" => (3..args.len())
            .filter(|index| args.at(*index).eq_ignore_ascii_case(b"db"))
            .filter_map(|index| number(index + 1))
            .collect(),
        _ => Vec::new(),
    }
}
