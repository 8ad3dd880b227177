//! Commands on keys, whatever they hold.

mod copy;
mod delete;
mod dump;
mod exists;
mod expire;
mod flush;
mod memory;
mod object;
mod rename;
mod sort;
mod ttl;
mod walk;

use command::{Access, Begin, Find, KeySpec, Refusal};

use super::key_specs::{key_at, keys_from};
use resp::Writer;

use super::DataCommand;
use super::arguments::{out_of_range, parse_integer};
use crate::context::{self, Edit};

pub use object::tells_use;
pub use sort::{sort_keys, sort_patterns};
pub use walk::{parse_cursor, scan_count};

pub(super) const COMMANDS: &[&DataCommand] = &[
    &copy::COPY,
    &copy::MOVE,
    &delete::DEL,
    &delete::UNLINK,
    &dump::DUMP,
    &dump::RESTORE,
    &exists::EXISTS,
    &exists::TOUCH,
    &exists::TYPE,
    &expire::EXPIRE,
    &expire::EXPIREAT,
    &expire::PEXPIRE,
    &expire::PEXPIREAT,
    &expire::PERSIST,
    &flush::FLUSHALL,
    &flush::FLUSHDB,
    &flush::SWAPDB,
    &memory::MEMORY,
    &object::OBJECT,
    &rename::RENAME,
    &rename::RENAMENX,
    &sort::SORT,
    &sort::SORT_RO,
    &ttl::EXPIRETIME,
    &ttl::PEXPIRETIME,
    &ttl::PTTL,
    &ttl::TTL,
    &walk::CLUSTERSCAN,
    &walk::DBSIZE,
    &walk::KEYS,
    &walk::RANDOMKEY,
    &walk::SCAN,
];

/// Every word behind the name is a key.
const fn all_words(access: Access, notes: &'static [&'static str]) -> KeySpec {
    keys_from(1, -1, access, notes)
}

/// Keys with names that depend on what the command finds.
const fn unknown_keys(access: Access, notes: &'static [&'static str]) -> KeySpec {
    KeySpec { access, begin: Begin::Unknown, find: Find::Unknown, notes }
}

/// The number of a database.
///
/// # Errors
/// Redis reads it as an integer of 32 bits and says so, before it looks whether there is such a database.
fn database_number(word: &[u8], database_count: u16) -> Result<u16, Refusal> {
    let number = parse_integer(word).ok_or(Refusal::NOT_AN_INTEGER)?;
    if i32::try_from(number).is_err() {
        return Err(out_of_range(i32::MIN.into(), i32::MAX.into()));
    }
    u16::try_from(number).ok().filter(|&number| number < database_count).ok_or(Refusal::DATABASE_RANGE)
}

/// How a key has been used, for one that is to live on under another name or in another database.
fn access_of(edit: &Edit<'_>, key: &[u8]) -> Option<context::Access> {
    let entry = edit.peek(key)?;
    Some(if edit.keyspace().tuning().policy.counts_uses() {
        context::Access::Frequency(entry.frequency(edit.moment()))
    } else {
        context::Access::IdleSeconds(entry.idle_seconds(edit.moment()))
    })
}

/// COPY onto itself, and MOVE to where the key is.
fn same_object() -> Refusal {
    Refusal::new("ERR source and destination objects are the same")
}

/// The reply of a container's HELP: `lines` between the usual first and last ones.
pub(super) fn write_help(writer: &mut Writer, container: &str, lines: &[&str]) {
    writer.array(lines.len() + 3);
    writer.simple(&format!("{container} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"));
    for line in lines {
        writer.simple(line);
    }
    writer.simple("HELP");
    writer.simple("    Prints this help.");
}

#[cfg(test)]
mod tests;
